(** * Rewriting preserves denotation (T7)

    First on terms, in any context.  Then on graphs: one pass rebuilds the graph in topological order,
    and at each fresh node runs the machine and builds the right-hand side.  Soundness of the machine
    is all that is used; sharing and well-formedness matter for finding matches, not here. *)

From Coq Require Import List Bool PeanoNat Lia.
Import ListNotations.
From PyPM Require Import Names Values Terms Guards Patterns Declarative Stores Machine Enumeration
  Dag Templates Emission.

Section Rewriting.
Context {Δ : Domain} {V : Type}.
Variable sem : op -> list V -> V.

(** ** Terms *)

Section Terms.
Variable tree_meaning : interpretation term.
#[local] Instance tree : Structure term := tree_structure tree_meaning.

Fixpoint term_den (t : term) : V := match t with Node f ts => sem f (map term_den ts) end.

Lemma term_den_compositional : compositional sem term_den.
Proof. intros [f ts] g us [= -> ->]. reflexivity. Qed.

(** [instance θ r u]: the tree that a template stands for. *)
Inductive instance (θ : env term) : template -> term -> Prop :=
| I_var x t : θ x = Some (VTerm t) -> instance θ (TVar x) t
| I_op f rs ts : instances θ rs ts -> instance θ (TOp f rs) (Node f ts)
| I_fun F f rs ts : θ F = Some (VOp f) -> instances θ rs ts -> instance θ (TFun F rs) (Node f ts)
with instances (θ : env term) : list template -> list term -> Prop :=
| I_nil : instances θ [] []
| I_cons r rs t ts : instance θ r t -> instances θ rs ts -> instances θ (r :: rs) (t :: ts).

(** It denotes what the template does. *)
Lemma instance_den θ r : forall u,
  instance θ r u -> template_den sem term_den θ r = Some (term_den u).
Proof.
  assert (All : forall rs, Forall (fun r => forall u, instance θ r u ->
      template_den sem term_den θ r = Some (term_den u)) rs ->
    forall ts, instances θ rs ts ->
    sequence (map (template_den sem term_den θ) rs) = Some (map term_den ts)).
  { induction 1 as [| q qs Hq _ IH]; intros ts H; inversion H; subst; simpl; auto.
    erewrite Hq, IH by eassumption. reflexivity. }
  induction r as [x | f rs IH | F rs IH] using template_ind'; intros u H;
    inversion H as [? ? E | ? ? ? Is | ? ? ? ? E Is]; subst; simpl; try rewrite E; auto;
    now rewrite (All rs IH _ Is).
Qed.

(** A term with a hole. *)
Inductive context : Type :=
| Hole
| Inside (f : op) (before : list term) (C : context) (after : list term).

Fixpoint plug (C : context) (t : term) : term :=
  match C with
  | Hole => t
  | Inside f before C after => Node f (before ++ plug C t :: after)
  end.

(** T7 (a) *)
Theorem rewrite_term p r C θ t u :
  law sem term_den p r -> [] ⊢ p @ θ ≈ t -> instance θ r u ->
  term_den (plug C u) = term_den (plug C t).
Proof.
  intros L M I. pose proof (L _ _ _ M (instance_den _ _ _ I)) as E. induction C; simpl; auto.
  f_equal. rewrite !map_app. simpl. now rewrite IHC.
Qed.
End Terms.

(** ** The values of the nodes of a graph *)

(** The value of an identifier outside of the graph, which is taken for a leaf. *)
Definition outside : V := sem 0 [].

Definition add_value (vs : list V) (n : node) : list V :=
  vs ++ [sem (fst n) (map (fun c => nth c vs outside) (snd n))].

Definition values (g : dag) : list V := fold_left add_value g [].

Definition node_den (g : dag) (i : nat) : V := nth i (values g) outside.

Lemma values_snoc g n : values (g ++ [n]) = add_value (values g) n.
Proof. unfold values. now rewrite fold_left_app. Qed.

Lemma values_length g : length (values g) = length g.
Proof.
  induction g as [| n g IH] using rev_ind; auto.
  rewrite values_snoc. unfold add_value. rewrite !app_length, IH. reflexivity.
Qed.

Lemma node_den_old g n i : i < length g -> node_den (g ++ [n]) i = node_den g i.
Proof.
  intros L. unfold node_den. rewrite values_snoc. unfold add_value.
  rewrite app_nth1; auto. now rewrite values_length.
Qed.

Lemma node_den_new g f cs :
  node_den (g ++ [(f, cs)]) (length g) = sem f (map (node_den g) cs).
Proof.
  unfold node_den at 1. rewrite values_snoc. unfold add_value.
  rewrite app_nth2; rewrite values_length; auto. now rewrite Nat.sub_diag.
Qed.

(** *** Topological order, node by node *)

Lemma topological_nil : topological [].
Proof. intros [| i] f cs E; discriminate. Qed.

Lemma topological_snoc g n :
  topological (g ++ [n]) <-> topological g /\ (forall c, In c (snd n) -> c < length g).
Proof.
  split.
  - intros H. split.
    + intros i f cs E c. assert (i < length g) as L by (apply nth_error_Some; congruence).
      apply (H i f cs). now rewrite nth_error_app1.
    + destruct n as [f cs]. apply (H (length g) f cs). rewrite nth_error_app2 by auto.
      now rewrite Nat.sub_diag.
  - intros [H Hn] i f cs E c I. destruct (Nat.lt_ge_cases i (length g)) as [L | L].
    + rewrite nth_error_app1 in E by auto. eapply H; eauto.
    + rewrite nth_error_app2 in E by auto. destruct (i - length g) as [| [|]]; try discriminate.
      injection E as ->. apply Hn in I. lia.
Qed.

(** *** Extensions *)

Lemma extension_den g g' i : extension g g' -> i < length g -> node_den g' i = node_den g i.
Proof.
  intros [e ->] L. induction e as [| n e IH] using rev_ind; [now rewrite app_nil_r |].
  rewrite app_assoc, node_den_old; auto. rewrite app_length. lia.
Qed.

(** *** The values are compositional *)

Lemma node_den_compositional dag_meaning g :
  topological g -> compositional (Σ := dag_structure dag_meaning g) sem (node_den g).
Proof.
  unfold compositional. simpl. induction g as [| n g IH] using rev_ind; intros Tp i f cs E.
  - unfold dag_dest in E. destruct i; injection E as <- <-; reflexivity.
  - apply topological_snoc in Tp as [Tp Hn]. unfold dag_dest in E.
    destruct (Nat.lt_trichotomy i (length g)) as [L | [-> | L]].
    + rewrite nth_error_app1 in E by auto. rewrite node_den_old, (IH Tp i f cs) by auto.
      f_equal. apply map_ext_in. intros c I. symmetry. apply node_den_old.
      destruct (nth_error g i) as [n' |] eqn:N; [subst | injection E as <- <-; destruct I].
      pose proof (Tp _ _ _ N c I). lia.
    + rewrite nth_error_app2, Nat.sub_diag in E by auto. simpl in E. subst n.
      rewrite node_den_new. f_equal. apply map_ext_in. intros c I. symmetry.
      apply node_den_old. now apply Hn.
    + rewrite (proj2 (nth_error_None _ _)) in E by (rewrite app_length; simpl; lia).
      injection E as <- <-. unfold node_den. apply nth_overflow.
      rewrite values_length, app_length. simpl. lia.
Qed.

(** ** A rewriter: match, then build the right-hand side *)

(** A rewriter is sound if it extends the graph and returns a node of the same value. *)
Definition sound_rewriter (rewrite : dag -> nat -> dag * nat) : Prop :=
  forall g i g' j, topological g -> i < length g -> rewrite g i = (g', j) ->
  extension g g' /\ topological g' /\ j < length g' /\ node_den g' j = node_den g i.

(** Attributes and operations on the nodes of a graph. *)
Variable dag_meaning : dag -> interpretation nat.
Definition nodes_of (g : dag) : Structure nat := dag_structure (dag_meaning g) g.

(** In a rebuild, all nodes that exist are allowed in a right-hand side. *)
Definition exists_in (g : dag) (i : nat) : bool := Nat.ltb i (length g).

(** Try a rule at a node: with the first answer within the fuel, build the right-hand side.  Where
    there is none, or it cannot be built, the graph stays as it is. *)
Definition apply_rule (fuel : nat) (p : pattern) (r : template) (g : dag) (i : nat) : dag * nat :=
  match run (Σ := nodes_of g) fuel (init p i) with
  | Some (σ :: _) =>
      match emit (exists_in g) (theta σ) r g with
      | Some result => result
      | None => (g, i)
      end
  | _ => (g, i)
  end.

(** What is emitted among existing nodes is in topological order. *)
Lemma emitted_topological den g g' js vs :
  topological g -> emitted sem den (exists_in g) (length g) g g' js vs -> topological g'.
Proof.
  intros Tp [X New _ _] k f cs N c I. destruct (Nat.lt_ge_cases k (length g)) as [L | L].
  - rewrite (extension_old _ _ _ X L) in N. eapply Tp; eauto.
  - destruct (New k f cs c L N I) as [A | [_ A]]; auto. apply Nat.ltb_lt in A. lia.
Qed.

(** The values of a graph are values of what is emitted. *)
Lemma node_den_new_values g g' :
  extension g g' -> topological g' ->
  new_values sem (node_den g) (exists_in g) (length g) g' (node_den g').
Proof.
  intros X Tp. split.
  - intros k f cs _ N. apply (node_den_compositional (dag_meaning g') g' Tp).
    simpl. unfold dag_dest. now rewrite N.
  - intros k A. apply extension_den; auto. now apply Nat.ltb_lt.
Qed.

Theorem apply_rule_sound fuel p r :
  (forall g, topological g -> law (Σ := nodes_of g) sem (node_den g) p r) ->
  sound_rewriter (apply_rule fuel p r).
Proof.
  intros Law g i g' j Tp L. unfold apply_rule.
  assert (Same : (g, i) = (g', j) -> extension g g' /\ topological g' /\ j < length g' /\
                 node_den g' j = node_den g i).
  { intros [= <- <-]. auto using extension_refl. }
  destruct (run _ _) as [[| σ o] |] eqn:R; auto.
  destruct (emit (exists_in g) (theta σ) r g) as [[g1 j1] |] eqn:E; auto.
  intros [= -> ->]. apply (emitted_one sem (node_den g)) in E.
  pose proof (emitted_topological _ _ _ _ _ Tp E) as Tp'. destruct E as [X _ Root Val].
  specialize (Val _ (node_den_new_values g g' X Tp')). repeat split; auto.
  - inversion Root as [| ? ? [A | A] _]; subst; [| lia].
    apply Nat.ltb_lt in A. pose proof (extension_length _ _ X). lia.
  - destruct (template_den sem (node_den g) (theta σ) r) as [v |] eqn:D; [| discriminate].
    injection Val as <-. apply run_sound in R. eapply (Law g Tp); [| exact D].
    eapply answers_sound; [exact R | now left | apply extends_refl].
Qed.

(** ** Rebuilding a graph *)

(** Copy a node through the map from old to new identifiers, then rewrite at the copy. *)
Definition rebuild_node (rewrite : dag -> nat -> dag * nat) (st : dag * list nat) (n : node)
    : dag * list nat :=
  let (g, μ) := st in
  let copy := (fst n, map (fun c => nth c μ 0) (snd n)) in
  let (g', j) := rewrite (g ++ [copy]) (length g) in
  (g', μ ++ [j]).

Definition rebuild (rewrite : dag -> nat -> dag * nat) (g : dag) : dag * list nat :=
  fold_left (rebuild_node rewrite) g ([], []).

(** The old graph and the new one, with the map between them. *)
Definition rebuilt (g : dag) (st : dag * list nat) : Prop :=
  let (g', μ) := st in
  topological g' /\ length μ = length g /\
  forall i, i < length g -> nth i μ 0 < length g' /\ node_den g' (nth i μ 0) = node_den g i.

Lemma rebuild_node_sound rewrite g st n :
  sound_rewriter rewrite -> topological (g ++ [n]) -> rebuilt g st ->
  rebuilt (g ++ [n]) (rebuild_node rewrite st n).
Proof.
  intros HR Tp H. destruct st as [g' μ], n as [f cs]. destruct H as (Tp' & Len & H).
  apply topological_snoc in Tp as [Tp Hn]. simpl in Hn. cbn [rebuild_node fst snd].
  set (copy := (f, map (fun c => nth c μ 0) cs)).
  destruct (rewrite (g' ++ [copy]) (length g')) as [g2 j] eqn:E.
  assert (length g' < length (g' ++ [copy])) as Lnew by (rewrite app_length; simpl; lia).
  apply HR in E as (X & Tp2 & J & D); auto.
  2: { apply topological_snoc. split; auto. intros c I. simpl in I.
       apply in_map_iff in I as (d & <- & I). apply H. now apply Hn. }
  split; [exact Tp2 |]. split; [rewrite !app_length; simpl; lia |].
  intros i L. rewrite app_length in L. simpl in L.
  destruct (Nat.eq_dec i (length g)) as [-> | N].
  - (* the new node *)
    rewrite app_nth2, Len, Nat.sub_diag by lia. cbn [nth]. split; [exact J |].
    rewrite D. unfold copy. rewrite !node_den_new, map_map. f_equal.
    apply map_ext_in. intros c I. apply H. now apply Hn.
  - (* an earlier one *)
    destruct (H i) as [Li Di]; [lia |]. rewrite app_nth1 by lia.
    apply extension_length in X as LX. split; [lia |].
    rewrite (extension_den _ _ _ X), !node_den_old by lia. exact Di.
Qed.

Theorem rebuild_sound rewrite g :
  sound_rewriter rewrite -> topological g -> rebuilt g (rebuild rewrite g).
Proof.
  intros HR. unfold rebuild. induction g as [| n g IH] using rev_ind; intros Tp.
  - split; [apply topological_nil |]. split; auto. intros i L. simpl in L. lia.
  - rewrite fold_left_app. simpl. apply rebuild_node_sound; auto. apply IH.
    now apply topological_snoc in Tp.
Qed.

(** T7 (c): after the rebuild every old node, hence every output, has its value. *)
Corollary rebuild_rule_sound fuel p r g :
  (forall g, topological g -> law (Σ := nodes_of g) sem (node_den g) p r) ->
  topological g -> rebuilt g (rebuild (apply_rule fuel p r) g).
Proof. intros Law Tp. apply rebuild_sound; auto. now apply apply_rule_sound. Qed.
End Rewriting.
