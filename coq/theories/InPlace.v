(** * Replacement in place (T7)

    A match at a node is replaced without rebuilding the graph: the nodes of the right-hand side are
    appended, and the users that the matched node had before are redirected to their root.  (Not the
    new nodes: see C11.)  If the right-hand side uses only nodes that rank no higher than the matched
    one, such as those below it, the graph stays acyclic, and every old node keeps its value. *)

From Coq Require Import List Bool PeanoNat Lia.
Import ListNotations.
From PyPM Require Import Names Values Terms Guards Patterns Declarative Stores Machine Enumeration
  Dag Templates Rewriting.

(** ** Acyclic graphs *)

(** Children exist and rank below their parents. *)
Definition ranked (rank : nat -> nat) (g : dag) : Prop :=
  forall k f cs c, nth_error g k = Some (f, cs) -> In c cs -> c < length g /\ rank c < rank k.

Definition acyclic (g : dag) : Prop := exists rank, ranked rank g.

Lemma topological_ranked g : topological g -> ranked (fun k => k) g.
Proof.
  intros Tp k f cs c N I. assert (k < length g) by (apply nth_error_Some; congruence).
  pose proof (Tp _ _ _ N c I). lia.
Qed.

(** ** Redirecting users *)

Definition redirect (old new : nat) (n : node) : node :=
  (fst n, map (fun c => if Nat.eqb c old then new else c) (snd n)).

(** The users of [i] among the nodes of [g] become users of [j]; the nodes that [g'] has beyond
    those of [g] stay as they are. *)
Definition redirect_users (g g' : dag) (i j : nat) : dag :=
  map (redirect i j) g ++ skipn (length g) g'.

Section InPlace.
Context {Δ : Domain} {V : Type}.
Variable sem : op -> list V -> V.

(** A denotation of the nodes of a graph, compositional as in [Templates.v]. *)
Definition denotation (g : dag) (den : nat -> V) : Prop :=
  forall k f cs, dag_dest g k = (f, cs) -> den k = sem f (map den cs).

(** *** Every acyclic graph has one *)

Fixpoint value_at (g : dag) (n k : nat) : V :=
  match n with
  | 0 => outside sem
  | S n => let (f, cs) := dag_dest g k in sem f (map (value_at g n) cs)
  end.

Lemma dag_dest_ranked rank g k f cs c :
  ranked rank g -> dag_dest g k = (f, cs) -> In c cs -> c < length g /\ rank c < rank k.
Proof.
  unfold dag_dest. intros H. destruct (nth_error g k) as [n |] eqn:N.
  - intros -> I. eapply H; eauto.
  - intros [= <- <-] [].
Qed.

Lemma value_at_stable rank g :
  ranked rank g -> forall n m k, rank k < n -> rank k < m -> value_at g n k = value_at g m k.
Proof.
  intros H. induction n as [| n IH]; intros [| m] k Ln Lm; try lia. simpl.
  destruct (dag_dest g k) as [f cs] eqn:D. f_equal. apply map_ext_in. intros c I.
  destruct (dag_dest_ranked _ _ _ _ _ _ H D I). apply IH; lia.
Qed.

Theorem denotation_exists g : acyclic g -> exists den, denotation g den.
Proof.
  intros [rank H]. exists (fun k => value_at g (S (rank k)) k). intros k f cs D.
  cbn [value_at]. rewrite D. f_equal. apply map_ext_in. intros c I.
  destruct (dag_dest_ranked _ _ _ _ _ _ H D I).
  apply (value_at_stable rank g H (rank k) (S (rank c))); lia.
Qed.

(** ** What the right-hand side appends *)

Section Emit.
Variables (allowed : nat -> bool) (θ : env nat).

Lemma emit_all_extends rs :
  Forall (fun r => forall g g' j, emit allowed θ r g = Some (g', j) -> extension g g') rs ->
  forall g g' js, emit_all (emit allowed θ) rs g = Some (g', js) -> extension g g'.
Proof.
  induction 1 as [| r rs Hr _ IH]; intros g g' js E; simpl in E.
  - injection E as <- <-. apply extension_refl.
  - destruct (emit allowed θ r g) as [[g1 j] |] eqn:E1; [| discriminate].
    destruct (emit_all (emit allowed θ) rs g1) as [[g2 js'] |] eqn:E2; [| discriminate].
    injection E as <- <-. eapply extension_trans; eauto.
Qed.

Lemma emit_extends r : forall g g' j, emit allowed θ r g = Some (g', j) -> extension g g'.
Proof.
  assert (Node : forall f rs g g' j,
    Forall (fun r => forall g g' j, emit allowed θ r g = Some (g', j) -> extension g g') rs ->
    add_node f (emit_all (emit allowed θ) rs g) = Some (g', j) -> extension g g').
  { intros f rs g g' j HF E. destruct (emit_all _ rs g) as [[g1 js] |] eqn:E1; [| discriminate].
    injection E as <- <-. eapply extension_trans; [| apply extension_snoc].
    eapply emit_all_extends; eauto. }
  induction r as [x | f rs IH | F rs IH] using template_ind'; intros g g' j E; cbn [emit] in E.
  - destruct (θ x) as [[i | | |] |]; try discriminate. destruct (allowed i); [| discriminate].
    injection E as <- <-. apply extension_refl.
  - eapply Node; eauto.
  - destruct (θ F) as [[| f | |] |]; try discriminate. eapply Node; eauto.
Qed.

(** A node may use what is allowed, and new nodes before it; new nodes begin at [n0]. *)
Variable n0 : nat.
Definition usable (k c : nat) : Prop := allowed c = true \/ n0 <= c < k.
Definition new_nodes_ok (g : dag) : Prop :=
  forall k f cs c, n0 <= k -> nth_error g k = Some (f, cs) -> In c cs -> usable k c.

Definition emits_usable (r : template) : Prop :=
  forall g g' j, n0 <= length g -> new_nodes_ok g -> emit allowed θ r g = Some (g', j) ->
  new_nodes_ok g' /\ usable (length g') j.

Lemma usable_le k k' c : k <= k' -> usable k c -> usable k' c.
Proof. intros L [A | B]; [now left | right; lia]. Qed.

Lemma emit_all_usable rs :
  Forall emits_usable rs -> forall g g' js, n0 <= length g -> new_nodes_ok g ->
  emit_all (emit allowed θ) rs g = Some (g', js) ->
  new_nodes_ok g' /\ forall j, In j js -> usable (length g') j.
Proof.
  induction 1 as [| r rs Hr HF IH]; intros g g' js L K E; simpl in E.
  - injection E as <- <-. split; auto. intros j [].
  - destruct (emit allowed θ r g) as [[g1 j] |] eqn:E1; [| discriminate].
    destruct (emit_all (emit allowed θ) rs g1) as [[g2 js'] |] eqn:E2; [| discriminate].
    injection E as <- <-. destruct (Hr _ _ _ L K E1) as [K1 U1].
    pose proof (extension_length _ _ (emit_extends _ _ _ _ E1)) as L1.
    destruct (IH g1 g2 js') as [K2 U2]; auto; [lia |]. split; auto. intros j' [<- | I]; auto.
    eapply usable_le; [| exact U1]. apply extension_length.
    eapply emit_all_extends; [| exact E2]. apply Forall_forall. intros r' _. apply emit_extends.
Qed.

Lemma add_node_usable f rs g g' j :
  Forall emits_usable rs -> n0 <= length g -> new_nodes_ok g ->
  add_node f (emit_all (emit allowed θ) rs g) = Some (g', j) ->
  new_nodes_ok g' /\ usable (length g') j.
Proof.
  intros HF L K E. destruct (emit_all _ rs g) as [[g1 js] |] eqn:E1; [| discriminate].
  injection E as <- <-. destruct (emit_all_usable rs HF g g1 js L K E1) as [K1 U1].
  assert (L1 : length g <= length g1).
  { apply extension_length. eapply emit_all_extends; [| exact E1]. apply Forall_forall.
    intros r' _. apply emit_extends. }
  split.
  - intros k f' cs c Lk N I. destruct (Nat.lt_ge_cases k (length g1)) as [Lt | Ge].
    + rewrite nth_error_app1 in N by exact Lt. eapply K1; eauto.
    + rewrite nth_error_app2 in N by exact Ge.
      destruct (k - length g1) as [| [|]] eqn:Ek; try discriminate. injection N as <- <-.
      eapply usable_le; [| apply U1, I]. lia.
  - right. rewrite app_length. simpl. lia.
Qed.

Lemma emit_usable r : emits_usable r.
Proof.
  induction r as [x | f rs IH | F rs IH] using template_ind'; intros g g' j L K E;
    cbn [emit] in E.
  - destruct (θ x) as [[i | | |] |]; try discriminate.
    destruct (allowed i) eqn:A; [| discriminate]. injection E as <- <-. split; auto. now left.
  - now apply (add_node_usable f rs g).
  - destruct (θ F) as [[| f | |] |]; try discriminate. now apply (add_node_usable f rs g).
Qed.

(** In any graph [G] that has the new nodes, and that values the allowed ones as before, the
    identifiers returned have the values of the templates. *)
Variables (G last : dag) (den den' : nat -> V).
Hypothesis den'_G : denotation G den'.
Hypothesis den'_allowed : forall k, allowed k = true -> den' k = den k.
Hypothesis G_new : forall k n, n0 <= k -> nth_error last k = Some n -> nth_error G k = Some n.

Definition emits_value (r : template) : Prop :=
  forall g g' j, n0 <= length g -> emit allowed θ r g = Some (g', j) -> extension g' last ->
  template_den sem den θ r = Some (den' j).

Lemma emit_all_value rs :
  Forall emits_value rs -> forall g g' js, n0 <= length g ->
  emit_all (emit allowed θ) rs g = Some (g', js) -> extension g' last ->
  sequence (map (template_den sem den θ) rs) = Some (map den' js).
Proof.
  induction 1 as [| r rs Hr HF IH]; intros g g' js L E X; simpl in E.
  - injection E as <- <-. reflexivity.
  - destruct (emit allowed θ r g) as [[g1 j] |] eqn:E1; [| discriminate].
    destruct (emit_all (emit allowed θ) rs g1) as [[g2 js'] |] eqn:E2; [| discriminate].
    injection E as <- <-.
    pose proof (extension_length _ _ (emit_extends _ _ _ _ E1)) as L1.
    assert (X1 : extension g1 last).
    { eapply extension_trans; [| exact X]. eapply emit_all_extends; [| exact E2].
      apply Forall_forall. intros r' _. apply emit_extends. }
    simpl. rewrite (Hr _ _ _ L E1 X1). rewrite (IH g1 g2 js'); auto. lia.
Qed.

Lemma add_node_value f rs g g' j :
  Forall emits_value rs -> n0 <= length g ->
  add_node f (emit_all (emit allowed θ) rs g) = Some (g', j) -> extension g' last ->
  option_map (sem f) (sequence (map (template_den sem den θ) rs)) = Some (den' j).
Proof.
  intros HF L E X. destruct (emit_all _ rs g) as [[g1 js] |] eqn:E1; [| discriminate].
  injection E as <- <-.
  assert (L1 : length g <= length g1).
  { apply extension_length. eapply emit_all_extends; [| exact E1]. apply Forall_forall.
    intros r' _. apply emit_extends. }
  rewrite (emit_all_value rs HF g g1 js L E1) by
    (eapply extension_trans; [apply extension_snoc | exact X]).
  simpl. f_equal. symmetry. apply den'_G. unfold dag_dest.
  erewrite G_new; [reflexivity | lia |]. destruct X as [e ->].
  rewrite nth_error_app1 by (rewrite app_length; simpl; lia).
  rewrite nth_error_app2 by lia. now rewrite Nat.sub_diag.
Qed.

Lemma emit_value r : emits_value r.
Proof.
  induction r as [x | f rs IH | F rs IH] using template_ind'; intros g g' j L E X;
    cbn [emit] in E; cbn [template_den].
  - destruct (θ x) as [[i | | |] |]; try discriminate.
    destruct (allowed i) eqn:A; [| discriminate]. injection E as <- <-. now rewrite den'_allowed.
  - now apply (add_node_value f rs g g').
  - destruct (θ F) as [[| f | |] |]; try discriminate. now apply (add_node_value f rs g g').
Qed.
End Emit.

(** From any graph, what a template appends uses allowed nodes, and new ones before it. *)
Lemma emitted_usable allowed θ r g g' j :
  emit allowed θ r g = Some (g', j) ->
  extension g g' /\ new_nodes_ok allowed (length g) g' /\ usable allowed (length g) (length g') j.
Proof.
  intros E. split; [now apply emit_extends in E |].
  apply (emit_usable allowed θ (length g) r g g' j); auto.
  intros k f cs c L N. apply nth_error_None in L. congruence.
Qed.

(** ** The graph after a replacement *)

Section Replacement.
Variables (g : dag) (rank : nat -> nat) (i : nat) (allowed : nat -> bool).
Hypothesis g_ranked : ranked rank g.

(** The right-hand side uses nodes that rank no higher than the matched one. *)
Hypothesis allowed_below : forall k, allowed k = true -> k < length g /\ rank k <= rank i.

(** What is appended uses allowed nodes, and new ones before it; so does its root. *)
Variables (g' : dag) (j : nat).
Hypothesis g'_extends : extension g g'.
Hypothesis new_usable : new_nodes_ok allowed (length g) g'.
Hypothesis root_usable : usable allowed (length g) (length g') j.

Let G := redirect_users g g' i j.

(** Between the rank of [i] and the next one there is room for the new nodes. *)
Definition new_rank (k : nat) : nat :=
  let room := S (length g') in
  if Nat.ltb k (length g) then rank k * room else rank i * room + S k.

Lemma old_node k n : k < length g -> nth_error G k = Some n ->
  exists n', nth_error g k = Some n' /\ n = redirect i j n'.
Proof.
  intros L N. unfold G, redirect_users in N. rewrite nth_error_app1 in N by now rewrite map_length.
  rewrite nth_error_map in N. destruct (nth_error g k) as [n' |]; [| discriminate].
  injection N as <-. eauto.
Qed.

Lemma new_node k : length g <= k -> nth_error G k = nth_error g' k.
Proof.
  intros L. destruct g'_extends as [e X]. unfold G, redirect_users.
  rewrite nth_error_app2 by now rewrite map_length. rewrite map_length, X.
  rewrite (nth_error_app2 _ _ L), skipn_app, skipn_all, Nat.sub_diag. reflexivity.
Qed.

Lemma G_length : length G = length g'.
Proof.
  destruct g'_extends as [e X]. unfold G, redirect_users.
  rewrite app_length, map_length, skipn_length, X, app_length. lia.
Qed.

Lemma usable_ranked k c :
  usable allowed (length g) k c -> k <= length g' ->
  c < length g' /\ new_rank c <= rank i * S (length g') + k.
Proof.
  pose proof (extension_length _ _ g'_extends) as L. unfold new_rank. intros [A | [L1 L2]] Lk.
  - destruct (allowed_below c A) as [Lc Rc]. apply Nat.ltb_lt in Lc as B. rewrite B.
    pose proof (Nat.mul_le_mono_r _ _ (S (length g')) Rc). lia.
  - apply Nat.ltb_ge in L1 as B. rewrite B. lia.
Qed.

Theorem replacement_acyclic : ranked new_rank G.
Proof.
  pose proof (extension_length _ _ g'_extends) as L.
  intros k f cs c N I. rewrite G_length. destruct (Nat.lt_ge_cases k (length g)) as [Lk | Lk].
  - apply old_node in N as ([f0 cs0] & N & E); auto. injection E as -> ->.
    apply in_map_iff in I as (c0 & E & I). destruct (g_ranked _ _ _ _ N I) as [L0 R0].
    assert (room : new_rank k = rank k * S (length g')).
    { unfold new_rank. apply Nat.ltb_lt in Lk. now rewrite Lk. }
    pose proof (Nat.mul_le_mono_r _ _ (S (length g')) R0) as M. simpl in M.
    destruct (Nat.eqb c0 i) eqn:Ei; subst c.
    + apply Nat.eqb_eq in Ei. subst c0.
      destruct (usable_ranked _ _ root_usable (Nat.le_refl _)) as [Lj Rj]. lia.
    + split; [lia |]. unfold new_rank at 1. apply Nat.ltb_lt in L0. rewrite L0. lia.
  - rewrite new_node in N by exact Lk. assert (k < length g') by (apply nth_error_Some; congruence).
    destruct (usable_ranked k c) as [Lc Rc]; [eapply new_usable; eauto | lia |]. split; auto.
    unfold new_rank at 2. apply Nat.ltb_ge in Lk. rewrite Lk. lia.
Qed.

(** *** Values *)

Variables (den den' : nat -> V).
Hypothesis den_g : denotation g den.
Hypothesis den'_G : denotation G den'.

(** What is appended is the right-hand side, and that denotes the value of the matched node. *)
Variables (θ : env nat) (rhs : template).
Hypothesis emitted_rhs : emit allowed θ rhs g = Some (g', j).
Hypothesis same_value : forall w, template_den sem den θ rhs = Some w -> w = den i.

Lemma old_dest k f cs :
  k < length g -> dag_dest g k = (f, cs) ->
  dag_dest G k = (f, map (fun c => if Nat.eqb c i then j else c) cs).
Proof.
  intros L D. unfold dag_dest in *.
  destruct (nth_error G k) as [n |] eqn:N.
  - apply old_node in N as (n' & N & ->); auto. rewrite N in D. subst n'. reflexivity.
  - apply nth_error_None in N. rewrite G_length in N.
    pose proof (extension_length _ _ g'_extends). lia.
Qed.

(** Nodes that rank no higher than [i] do not use it. *)
Lemma low_value n : forall k, rank k < n -> k < length g -> rank k <= rank i -> den' k = den k.
Proof.
  induction n as [| n IH]; intros k Ln L R; [lia |].
  destruct (dag_dest g k) as [f cs] eqn:D.
  rewrite (den_g _ _ _ D), (den'_G _ _ _ (old_dest _ _ _ L D)), map_map. f_equal.
  apply map_ext_in. intros c I. destruct (dag_dest_ranked _ _ _ _ _ _ g_ranked D I) as [Lc Rc].
  destruct (Nat.eqb c i) eqn:Ei; [apply Nat.eqb_eq in Ei; subst; lia |]. apply IH; lia.
Qed.

Lemma root_value : den' j = den i.
Proof.
  apply same_value.
  apply (emit_value allowed θ (length g) G g' den den') with (g := g) (g' := g'); auto.
  - intros k A. destruct (allowed_below k A). apply (low_value (S (rank k))); auto.
  - intros k n L N. now rewrite new_node.
  - apply extension_refl.
Qed.

Theorem replacement_value n : forall k, rank k < n -> k < length g -> den' k = den k.
Proof.
  induction n as [| n IH]; intros k Ln L; [lia |].
  destruct (dag_dest g k) as [f cs] eqn:D.
  rewrite (den_g _ _ _ D), (den'_G _ _ _ (old_dest _ _ _ L D)), map_map. f_equal.
  apply map_ext_in. intros c I. destruct (dag_dest_ranked _ _ _ _ _ _ g_ranked D I) as [Lc Rc].
  destruct (Nat.eqb c i) eqn:Ei.
  - apply Nat.eqb_eq in Ei. subst c. apply root_value.
  - apply IH; lia.
Qed.
End Replacement.

(** ** Match, and replace in place *)

Variable dag_meaning : dag -> interpretation nat.

Definition replace_in_place (fuel : nat) (lhs : template) (gd : guard) (rhs : template)
    (allowed : nat -> bool) (g : dag) (i : nat) : option (dag * nat) :=
  match run (Σ := nodes_of dag_meaning g) fuel (init (PGuard (pattern_of lhs) gd) i) with
  | Some (σ :: _) =>
      match emit allowed (theta σ) rhs g with
      | Some (g', j) => Some (redirect_users g g' i j, j)
      | None => None
      end
  | _ => None
  end.

Theorem replace_in_place_sound fuel lhs gd rhs allowed rank g i G j den :
  ranked rank g -> denotation g den ->
  (forall k, allowed k = true -> k < length g /\ rank k <= rank i) ->
  equation (Σ := nodes_of dag_meaning g) sem den lhs gd rhs ->
  replace_in_place fuel lhs gd rhs allowed g i = Some (G, j) ->
  acyclic G /\
  forall den', denotation G den' ->
    den' j = den i /\ forall k, k < length g -> den' k = den k.
Proof.
  intros Hg Hd Ha Eq E. unfold replace_in_place in E.
  destruct (run _ _) as [[| σ o] |] eqn:R; try discriminate.
  destruct (emit allowed (theta σ) rhs g) as [[g' j'] |] eqn:Em; [| discriminate].
  injection E as <- <-. pose proof (emitted_usable _ _ _ _ _ _ Em) as (X & New & Root). split.
  { eexists. eapply replacement_acyclic; eauto. }
  apply run_sound in R. intros den' Hd'.
  assert (M : matches (Σ := nodes_of dag_meaning g) [] (PGuard (pattern_of lhs) gd) (theta σ) i).
  { eapply answers_sound; [exact R | now left | apply extends_refl]. }
  assert (Same : forall w, template_den sem den (theta σ) rhs = Some w -> w = den i).
  { intros w W. exact (equation_sound (Σ := nodes_of dag_meaning g) sem den Hd _ _ _ _ _ _ Eq M W). }
  split.
  - eapply root_value; eauto.
  - intros k L. eapply replacement_value; eauto.
Qed.
End InPlace.
