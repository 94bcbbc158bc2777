(** * Rewriting preserves denotation (T7)

    First on terms, in any context.  Then on graphs: one pass rebuilds the graph in topological order,
    and at each fresh node runs the machine and builds the right-hand side.  Soundness of the machine
    is all that is used; sharing and well-formedness matter for finding matches, not here. *)

From Coq Require Import List Bool PeanoNat Lia.
Import ListNotations.
From PyPM Require Import Names Values Terms Guards Patterns Declarative Stores Machine Enumeration
  Dag Templates.

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

(** A rule is valid if all that it matches denotes what it is replaced by. *)
Definition valid (p : pattern) (r : template) : Prop :=
  forall θ t u, [] ⊢ p @ θ ≈ t -> instance θ r u -> term_den u = term_den t.

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
  valid p r -> [] ⊢ p @ θ ≈ t -> instance θ r u -> term_den (plug C u) = term_den (plug C t).
Proof.
  intros HV M I. pose proof (HV _ _ _ M I) as E. induction C; simpl; auto.
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

(** *** Extensions of a graph *)

Definition extension (g g' : dag) : Prop := exists e, g' = g ++ e.

Lemma extension_refl g : extension g g.
Proof. exists []. now rewrite app_nil_r. Qed.

Lemma extension_snoc g n : extension g (g ++ [n]).
Proof. now exists [n]. Qed.

Lemma extension_trans g1 g2 g3 : extension g1 g2 -> extension g2 g3 -> extension g1 g3.
Proof. intros [e ->] [e' ->]. exists (e ++ e'). now rewrite app_assoc. Qed.

Lemma extension_length g g' : extension g g' -> length g <= length g'.
Proof. intros [e ->]. rewrite app_length. lia. Qed.

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

(** ** Building the right-hand side *)

(** Append the nodes for several templates, and return their identifiers. *)
Section EmitAll.
Variable emit : template -> dag -> option (dag * nat).

Fixpoint emit_all (rs : list template) (g : dag) : option (dag * list nat) :=
  match rs with
  | [] => Some (g, [])
  | r :: rs =>
      match emit r g with
      | Some (g1, j) =>
          match emit_all rs g1 with
          | Some (g2, js) => Some (g2, j :: js)
          | None => None
          end
      | None => None
      end
  end.
End EmitAll.

Definition add_node (f : op) (o : option (dag * list nat)) : option (dag * nat) :=
  match o with
  | Some (g, js) => Some (g ++ [(f, js)], length g)
  | None => None
  end.

(** [emit allowed θ r g] appends the nodes for [r] to [g], and returns the identifier of its root.
    It checks that what a variable is bound to is allowed in a right-hand side. *)
Fixpoint emit (allowed : nat -> bool) (θ : env nat) (r : template) (g : dag) : option (dag * nat) :=
  match r with
  | TVar x =>
      match θ x with
      | Some (VTerm i) => if allowed i then Some (g, i) else None
      | _ => None
      end
  | TOp f rs => add_node f (emit_all (emit allowed θ) rs g)
  | TFun F rs =>
      match θ F with
      | Some (VOp f) => add_node f (emit_all (emit allowed θ) rs g)
      | _ => None
      end
  end.

(** In a rebuild, all nodes that exist are allowed. *)
Definition exists_in (g : dag) (i : nat) : bool := Nat.ltb i (length g).

(** What is true of a graph [g'] with a root [j], built from [g] for a template with value [v]. *)
Record emitted (g g' : dag) (j : nat) (v : option V) : Prop := {
  em_extension : extension g g';
  em_topological : topological g';
  em_exists : j < length g';
  em_den : v = Some (node_den g' j)
}.

Definition emit_ok (g0 : dag) (θ : env nat) (r : template) : Prop :=
  forall g g' j, extension g0 g -> topological g -> emit (exists_in g0) θ r g = Some (g', j) ->
  emitted g g' j (template_den sem (node_den g0) θ r).

Lemma emit_all_sound g0 θ rs :
  Forall (emit_ok g0 θ) rs ->
  forall g g' js, extension g0 g -> topological g ->
  emit_all (emit (exists_in g0) θ) rs g = Some (g', js) ->
  extension g g' /\ topological g' /\ (forall j, In j js -> j < length g') /\
  sequence (map (template_den sem (node_den g0) θ) rs) = Some (map (node_den g') js).
Proof.
  induction 1 as [| r rs Hr _ IH]; intros g g' js H0 Tp E; simpl in E.
  - injection E as <- <-. repeat split; auto using extension_refl. intros j [].
  - destruct (emit (exists_in g0) θ r g) as [[g1 j] |] eqn:E1; [| discriminate].
    destruct (emit_all (emit (exists_in g0) θ) rs g1) as [[g2 js'] |] eqn:E2; [| discriminate].
    injection E as <- <-. destruct (Hr _ _ _ H0 Tp E1) as [X1 Tp1 J1 D1].
    destruct (IH _ _ _ (extension_trans _ _ _ H0 X1) Tp1 E2) as (X2 & Tp2 & J2 & D2).
    repeat split; auto.
    + exact (extension_trans _ _ _ X1 X2).
    + intros i [<- | I]; auto. apply extension_length in X2. lia.
    + simpl. rewrite D1, D2. simpl. now rewrite (extension_den g1 g2).
Qed.

Lemma add_node_sound g0 θ f rs g g' j :
  Forall (emit_ok g0 θ) rs -> extension g0 g -> topological g ->
  add_node f (emit_all (emit (exists_in g0) θ) rs g) = Some (g', j) ->
  emitted g g' j
    (option_map (sem f) (sequence (map (template_den sem (node_den g0) θ) rs))).
Proof.
  intros HF H0 Tp E.
  destruct (emit_all (emit (exists_in g0) θ) rs g) as [[g1 js] |] eqn:E1; [| discriminate].
  injection E as <- <-.
  destruct (emit_all_sound g0 θ rs HF g g1 js H0 Tp E1) as (X & Tp1 & J & D). split.
  - exact (extension_trans _ _ _ X (extension_snoc _ _)).
  - now apply topological_snoc.
  - rewrite app_length. simpl. lia.
  - rewrite D. simpl. now rewrite node_den_new.
Qed.

Lemma emit_sound g0 θ r : emit_ok g0 θ r.
Proof.
  induction r as [x | f rs IH | F rs IH] using template_ind'; intros g g' j H0 Tp E;
    cbn [emit] in E; cbn [template_den].
  - destruct (θ x) as [[i | | |] |]; try discriminate.
    destruct (exists_in g0 i) eqn:L; [| discriminate]. apply Nat.ltb_lt in L.
    injection E as <- <-. split; auto using extension_refl.
    + apply extension_length in H0. lia.
    + now rewrite (extension_den g0 g).
  - now apply (add_node_sound g0 θ f rs).
  - destruct (θ F) as [[| f | |] |]; try discriminate. now apply (add_node_sound g0 θ f rs).
Qed.

(** ** A rewriter: match, then build the right-hand side *)

(** A rewriter is sound if it extends the graph and returns a node of the same value. *)
Definition sound_rewriter (rewrite : dag -> nat -> dag * nat) : Prop :=
  forall g i g' j, topological g -> i < length g -> rewrite g i = (g', j) ->
  extension g g' /\ topological g' /\ j < length g' /\ node_den g' j = node_den g i.

(** Attributes and operations on the nodes of a graph. *)
Variable dag_meaning : dag -> interpretation nat.
Definition nodes_of (g : dag) : Structure nat := dag_structure (dag_meaning g) g.

(** Try a rule at a node: with the first answer within the fuel, build the right-hand side.  Where
    there is none, or it cannot be built, the graph stays as it is. *)
Definition apply_rule (fuel : nat) (lhs : template) (gd : guard) (rhs : template)
    (g : dag) (i : nat) : dag * nat :=
  match run (Σ := nodes_of g) fuel (init (PGuard (pattern_of lhs) gd) i) with
  | Some (σ :: _) =>
      match emit (exists_in g) (theta σ) rhs g with
      | Some result => result
      | None => (g, i)
      end
  | _ => (g, i)
  end.

Theorem apply_rule_sound fuel lhs gd rhs :
  (forall g, topological g -> equation (Σ := nodes_of g) sem (node_den g) lhs gd rhs) ->
  sound_rewriter (apply_rule fuel lhs gd rhs).
Proof.
  intros Eq g i g' j Tp L. unfold apply_rule.
  assert (Same : (g, i) = (g', j) -> extension g g' /\ topological g' /\ j < length g' /\
                 node_den g' j = node_den g i).
  { intros [= <- <-]. auto using extension_refl. }
  destruct (run _ _) as [[| σ o] |] eqn:R; auto.
  destruct (emit (exists_in g) (theta σ) rhs g) as [[g1 j1] |] eqn:E; auto.
  intros [= -> ->].
  destruct (emit_sound g (theta σ) rhs g g' j (extension_refl g) Tp E) as [X Tp' J D].
  repeat split; auto. apply run_sound in R.
  eapply equation_sound;
    [apply (node_den_compositional (dag_meaning g) g Tp) | apply (Eq g Tp) | | exact D].
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
Corollary rebuild_rule_sound fuel lhs gd rhs g :
  (forall g, topological g -> equation (Σ := nodes_of g) sem (node_den g) lhs gd rhs) ->
  topological g -> rebuilt g (rebuild (apply_rule fuel lhs gd rhs) g).
Proof. intros Eq Tp. apply rebuild_sound; auto. now apply apply_rule_sound. Qed.
End Rewriting.
