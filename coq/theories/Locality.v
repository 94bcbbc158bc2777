(** * Matching at a node depends on what is below it

    Where all that is below a node is the same in two graphs, so are the answers at that node.  Nothing
    is assumed about sharing, and patterns may be recursive, or read attributes of whatever is below. *)

From Coq Require Import List Bool PeanoNat Lia.
Import ListNotations.
From PyPM Require Import Names Values Terms Guards Patterns Declarative Stores Machine
  Enumeration Simulation Dag Rewriting InPlace.

(** ** What is below a node *)

Definition child (g : dag) (k c : nat) : Prop := In c (snd (dag_dest g k)).

(** [below g k c]: the node [c] is [k], or a child, or a child of a child, ... *)
Inductive below (g : dag) : nat -> nat -> Prop :=
| B_here k : below g k k
| B_child k c d : child g k c -> below g c d -> below g k d.

Lemma below_trans g a b c : below g a b -> below g b c -> below g a c.
Proof. induction 1; eauto using below. Qed.

Lemma child_ranked rank g k c : ranked rank g -> child g k c -> c < length g /\ rank c < rank k.
Proof.
  unfold child. intros H I. destruct (dag_dest g k) as [f cs] eqn:D. eapply dag_dest_ranked; eauto.
Qed.

Lemma below_ranked rank g k c :
  ranked rank g -> below g k c -> k < length g -> c < length g /\ rank c <= rank k.
Proof.
  intros H. induction 1 as [k | k c d K _ IH]; intros L; auto.
  destruct (child_ranked _ _ _ _ H K) as [Lc Rc]. destruct (IH Lc). lia.
Qed.

(** ** The same below *)

(** The node [a] of [g] is the node [b] of [h], and all that is below it is the same. *)
Definition same_below (g h : dag) (a b : nat) : Prop :=
  a = b /\ forall c, below g a c -> dag_dest g c = dag_dest h c.

(** Two graphs give a node the same attributes where all that is below it is the same. *)
Definition local_meaning {Δ : Domain} (dag_meaning : dag -> interpretation nat) : Prop :=
  forall g h, interpretations_agree (same_below g h) (dag_meaning g) (dag_meaning h).

Lemma same_below_dest g h a b :
  same_below g h a b -> fst (dag_dest g a) = fst (dag_dest h b) /\
    Forall2 (same_below g h) (snd (dag_dest g a)) (snd (dag_dest h b)).
Proof.
  intros [<- H]. rewrite <- (H a (B_here g a)). split; auto.
  assert (K : forall c, In c (snd (dag_dest g a)) -> same_below g h c c).
  { intros c I. split; auto. intros d B. apply H. eapply B_child; eauto. }
  induction (snd (dag_dest g a)); constructor; auto using in_eq, in_cons.
Qed.

Lemma same_value {Δ : Domain} g h (v w : value nat) : value_rel (same_below g h) v w -> v = w.
Proof.
  revert w. induction v as [t | f | c | vs IH] using value_ind'; intros w H; inversion H; subst; auto.
  - now match goal with R : same_below _ _ _ _ |- _ => destruct R as [-> _] end.
  - f_equal. clear H. match goal with F : Forall2 _ _ _ |- _ => induction F; auto end.
    inversion IH; subst. f_equal; auto.
Qed.

Lemma same_store {Δ : Domain} g h (σ σ' : store nat) :
  store_rel (r := same_below g h) σ σ' -> σ = σ'.
Proof.
  destruct σ as [n cs], σ' as [n' cs']. intros [E F]. simpl in *. subst. f_equal.
  induction F as [| [l v] [l' w] ? ? [E V] _ IH]; auto. simpl in *. subst. f_equal; auto.
  f_equal. eapply same_value; eauto.
Qed.

Section Locality.
Context {Δ : Domain}.
Variable dag_meaning : dag -> interpretation nat.
Hypothesis meaning_local : local_meaning dag_meaning.

Notation nodes := (nodes_of dag_meaning).

#[local] Instance same_below_simulation g h : Simulation (nodes g) (nodes h) (same_below g h).
Proof.
  split.
  - exact (same_below_dest g h).
  - intros a b a' b' [<- _] [<- _]. reflexivity.
  - apply meaning_local.
Qed.

Lemma same_answers g h p k o :
  (forall c, below g k c -> dag_dest g c = dag_dest h c) ->
  answers (Σ := nodes g) (init p k) o -> answers (Σ := nodes h) (init p k) o.
Proof.
  intros S H. destruct (init_rel (Sim := same_below_simulation g h) p k k o (conj eq_refl S) H)
    as (o' & H' & F).
  replace o with o'; auto. clear H H'. induction F; auto. f_equal; auto.
  symmetry. eapply same_store; eauto.
Qed.
End Locality.

Arguments same_answers {Δ dag_meaning}.
