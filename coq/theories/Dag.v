(** * Graphs (T6)

    The nodes of a hash-consed graph are a term structure, compared by identity.  If the graph is
    maximally shared, matching at a node is matching the tree that the node unfolds to. *)

From Coq Require Import List Bool PeanoNat Lia.
Import ListNotations.
From PyPM Require Import Names Values Terms Guards Patterns Declarative Stores Machine WellFormed
  Guarded Soundness Completeness Enumeration Termination Simulation.

(** ** Graphs *)

(** A node is an operator with the identifiers of its children; its identifier is its position. *)
Definition node : Type := op * list nat.
Definition dag : Type := list node.

(** Children come before their parents. *)
Definition topological (g : dag) : Prop :=
  forall i f cs, nth_error g i = Some (f, cs) -> forall c, In c cs -> c < i.

(** No two identifiers carry the same node. *)
Definition maximally_shared (g : dag) : Prop :=
  forall i j n, nth_error g i = Some n -> nth_error g j = Some n -> i = j.

(** An identifier outside of the graph is taken for a leaf. *)
Definition dag_dest (g : dag) (i : nat) : node :=
  match nth_error g i with
  | Some n => n
  | None => (0, [])
  end.

Definition dag_structure {Δ : Domain} (dag_meaning : interpretation nat) (g : dag)
    : Structure nat := {|
  teqb := Nat.eqb;
  teqb_spec := Nat.eqb_eq;
  dest := dag_dest g;
  meaning := dag_meaning
|}.

(** ** Unfolding *)

(** [unfolds g i t]: the node [i] unfolds to the tree [t]. *)
Inductive unfolds (g : dag) : nat -> term -> Prop :=
| U_node i f cs ts :
    nth_error g i = Some (f, cs) -> unfolds_all g cs ts -> unfolds g i (Node f ts)
with unfolds_all (g : dag) : list nat -> list term -> Prop :=
| U_nil : unfolds_all g [] []
| U_cons c cs t ts : unfolds g c t -> unfolds_all g cs ts -> unfolds_all g (c :: cs) (t :: ts).

Lemma unfolds_all_Forall2 g cs ts : unfolds_all g cs ts <-> Forall2 (unfolds g) cs ts.
Proof. split; induction 1; constructor; auto. Qed.

Lemma unfolds_functional g t : forall i u, unfolds g i t -> unfolds g i u -> t = u.
Proof.
  induction t as [f ts IH] using term_ind'. intros i u H1 H2.
  inversion H1 as [? ? cs ? N1 A1]; subst. inversion H2 as [? f2 cs2 us N2 A2]; subst.
  rewrite N1 in N2. injection N2 as <- <-. f_equal. clear H1 H2 N1. revert cs us A1 A2.
  induction IH as [| t ts Ht _ IHts]; intros cs us A1 A2;
    inversion A1; subst; inversion A2; subst; auto. f_equal; eauto.
Qed.

Lemma unfolds_injective g :
  maximally_shared g -> forall t i j, unfolds g i t -> unfolds g j t -> i = j.
Proof.
  intros Sh. induction t as [f ts IH] using term_ind'. intros i j H1 H2.
  inversion H1 as [? ? cs ? N1 A1]; subst. inversion H2 as [? ? cs2 ? N2 A2]; subst.
  assert (cs = cs2) as <-; [| eapply Sh; eauto].
  clear H1 H2 N1 N2. revert cs cs2 A1 A2.
  induction IH as [| t ts Ht _ IHts]; intros cs cs2 A1 A2;
    inversion A1; subst; inversion A2; subst; auto. f_equal; eauto.
Qed.

(** In a topologically ordered graph every node unfolds. *)
Lemma unfolds_total g : topological g -> forall i, i < length g -> exists t, unfolds g i t.
Proof.
  intros Tp i. induction i as [i IH] using (well_founded_induction Wf_nat.lt_wf). intros L.
  destruct (nth_error g i) as [[f cs] |] eqn:N; [| apply nth_error_None in N; lia].
  assert (exists ts, unfolds_all g cs ts) as [ts H].
  { pose proof (Tp _ _ _ N) as Lt. clear N.
    induction cs as [| c cs IHcs]; [exists []; constructor |].
    destruct IHcs as [ts Hts]; [intros; apply Lt; now right |].
    assert (c < i) as Lc by (apply Lt; now left).
    destruct (IH c Lc) as [t Ht]; [lia |]. exists (t :: ts). now constructor. }
  exists (Node f ts). econstructor; eauto.
Qed.

(** ** T6 *)

Section Sharing.
Context {Δ : Domain}.
Variable dag_meaning : interpretation nat.
Variable tree_meaning : interpretation term.
Variable g : dag.

#[local] Instance nodes : Structure nat := dag_structure dag_meaning g.
#[local] Instance trees : Structure term := tree_structure tree_meaning.

(** No two nodes are equal: a guard on attributes may read only what the key of hash-consing holds. *)
Hypothesis shared : maximally_shared g.

(** A node has the attributes of the tree that it unfolds to, and operations treat them alike. *)
Hypothesis meanings_agree : interpretations_agree (unfolds g) dag_meaning tree_meaning.

Lemma unfolds_eqb i j t u : unfolds g i t -> unfolds g j u -> Nat.eqb i j = term_eqb t u.
Proof.
  intros Hi Hj. destruct (Nat.eqb i j) eqn:E.
  - apply Nat.eqb_eq in E. subst. symmetry. apply term_eqb_spec. eapply unfolds_functional; eauto.
  - symmetry. apply not_true_is_false. intros H. apply term_eqb_spec in H. subst.
    apply Nat.eqb_neq in E. apply E. eapply unfolds_injective; eauto.
Qed.

Lemma unfolds_dest i t :
  unfolds g i t -> fst (dag_dest g i) = fst (term_dest t) /\
    Forall2 (unfolds g) (snd (dag_dest g i)) (snd (term_dest t)).
Proof.
  intros H. inversion H as [? f cs ts N A]; subst. unfold dag_dest. rewrite N. simpl.
  split; auto. now apply unfolds_all_Forall2.
Qed.

#[local] Instance unfolding_simulation : Simulation nodes trees (unfolds g).
Proof.
  split.
  - exact unfolds_dest.
  - intros i t j u Hi Hj. exact (unfolds_eqb i j t u Hi Hj).
  - exact meanings_agree.
Qed.

(** Matching by identity and matching the unfolding give the same answers, in the same order. *)
Theorem dag_answers p i t o :
  unfolds g i t -> init p i ⇓ o ->
  exists o', init p t ⇓ o' /\ Forall2 (store_rel (r := unfolds g)) o o'.
Proof. apply init_rel. Qed.

(** Hence a node matches if its unfolding does. *)
Theorem dag_matches p i t o :
  wf p = true -> unfolds g i t -> init p i ⇓ o ->
  (o <> [] <-> exists θ : env term, [] ⊢ p @ θ ≈ t).
Proof.
  intros W H R. destruct (dag_answers p i t o H R) as (o' & R' & F). split.
  - intros N. destruct F as [| σ σ' ? ? ? ?]; [congruence |]. exists (theta σ').
    eapply answers_sound; [exact R' | now left | apply extends_refl].
  - intros [θ M]. destruct (answers_complete p t o' θ W R' M) as (σ & I & _).
    intros ->. inversion F; subst. destruct I.
Qed.

(** With a guarded pattern and a topologically ordered graph both runs exist. *)
Theorem dag_total p i t :
  topological g -> guarded p = true -> unfolds g i t ->
  exists o o', init p i ⇓ o /\ init p t ⇓ o' /\ Forall2 (store_rel (r := unfolds g)) o o'.
Proof.
  intros Tp G H.
  assert (Z : Sized nat).
  { exists (fun i => i). simpl. unfold dag_dest. intros j f cs c E I.
    destruct (nth_error g j) as [[f' cs'] |] eqn:N; injection E as <- <-; [| destruct I].
    exact (Tp _ _ _ N c I). }
  destruct (termination p i G) as [o R]. destruct (dag_answers p i t o H R) as (o' & R' & F).
  eauto.
Qed.
End Sharing.
