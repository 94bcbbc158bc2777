(** * The big-step semantics gives whatever the machine answers (T5)

    The converse of [BigStep.v].  The steps of a run are counted; a run whose first action is a match
    contains the runs of its parts, which take fewer steps. *)

From Coq Require Import List Bool PeanoNat Lia.
Import ListNotations.
From PyPM Require Import Names Values Terms Guards Patterns Declarative Stores Machine Enumeration
  BigStep.

Section Ordered.
Context {Δ : Domain} {T : Type} {Σ : Structure T}.

(** ** Runs, with the number of their steps *)

Inductive takes : nat -> state T -> list (store T) -> Prop :=
| T_failure : takes 0 [] []
| T_success n σ stk o : takes n stk o -> takes n ((σ, []) :: stk) (σ :: o)
| T_step n σ a k stk o :
    takes n (do_action σ a k ++ stk) o -> takes (S n) ((σ, a :: k) :: stk) o.

Lemma answers_take (st : state T) o : st ⇓ o -> exists n, takes n st o.
Proof.
  induction 1 as [| σ stk o _ [n IH] | st o Run _ [n IH]].
  - exists 0. constructor.
  - exists n. now constructor.
  - destruct st as [| [σ [| a k]] stk]; try discriminate. exists (S n). now constructor.
Qed.

Lemma takes_answers n (st : state T) o : takes n st o -> st ⇓ o.
Proof. induction 1; [constructor | now constructor | now apply answers_step]. Qed.

(** The runs of two parts of a stack. *)
Lemma takes_split X : forall n (Y : state T) o,
  takes n (X ++ Y) o ->
  exists n1 n2 o1 o2, takes n1 X o1 /\ takes n2 Y o2 /\ n = n1 + n2 /\ o = o1 ++ o2.
Proof.
  intros n Y o H. remember (X ++ Y) as st eqn:E. revert X E.
  induction H as [| n σ stk o H IH | n σ a k stk o H IH]; intros X E.
  - symmetry in E. apply app_eq_nil in E as [-> ->]. exists 0, 0, [], []. repeat constructor.
  - destruct X as [| c X]; simpl in E.
    + subst Y. exists 0, n, [], (σ :: o). repeat constructor. exact H.
    + injection E as <- E. destruct (IH X E) as (n1 & n2 & o1 & o2 & H1 & H2 & -> & ->).
      exists n1, n2, (σ :: o1), o2. repeat split; auto. now constructor.
  - destruct X as [| c X]; simpl in E.
    + subst Y. exists 0, (S n), [], o. repeat constructor. exact H.
    + injection E as <- ->. destruct (IH (do_action σ a k ++ X)) as (n1 & n2 & o1 & o2 & H1 & H2 & -> & ->).
      { now rewrite app_assoc. }
      exists (S n1), n2, o1, o2. repeat split; auto. now constructor.
Qed.

Lemma takes_app n m (X Y : state T) o o' :
  takes n X o -> takes m Y o' -> takes (n + m) (X ++ Y) (o ++ o').
Proof.
  induction 1; intros HY; simpl; [exact HY | constructor; auto | constructor].
  rewrite app_assoc. auto.
Qed.

(** An action that gives at most one store, done after each of several answers. *)
Lemma takes_flat_map (P : store T -> option (store T)) a k :
  (forall σ, do_action σ a k = continue k (P σ)) ->
  forall o n stk o', takes n (with_actions (a :: k) o ++ stk) o' ->
  exists m, m <= n /\ takes m (with_actions k (flat_map (fun σ => option_list (P σ)) o) ++ stk) o'.
Proof.
  intros H. induction o as [| σ o IH]; intros n stk o' R; [exists n; auto |].
  simpl in R. inversion R as [| | n' ? ? ? ? ? R']; subst. rewrite H in R'. simpl.
  destruct (P σ) as [σ' |]; simpl in *.
  - destruct (takes_split [(σ', k)] _ _ _ R') as (n1 & n2 & o1 & o2 & H1 & H2 & -> & ->).
    destruct (IH _ _ _ H2) as (m & L & M). exists (n1 + m). split; [lia |].
    exact (takes_app _ _ [(σ', k)] _ _ _ H1 M).
  - destruct (IH _ _ _ R') as (m & L & M). exists m. split; [lia | exact M].
Qed.

(** A test, done after each of several answers. *)
Lemma takes_filter (P : store T -> bool) a k :
  (forall σ, do_action σ a k = if P σ then [(σ, k)] else []) ->
  forall o n stk o', takes n (with_actions (a :: k) o ++ stk) o' ->
  exists m, m <= n /\ takes m (with_actions k (filter P o) ++ stk) o'.
Proof.
  intros H o n stk o' R.
  replace (filter P o) with (flat_map (fun σ => option_list (if P σ then Some σ else None)) o).
  - apply (takes_flat_map (fun σ => if P σ then Some σ else None) a k); auto.
    intros σ. rewrite H. now destruct (P σ).
  - clear. induction o as [| σ o IH]; simpl; auto. rewrite IH. now destruct (P σ).
Qed.

(** ** A run of a match contains the answers of the match *)

Definition contains (n : nat) : Prop := forall R ρ p t σ k stk o',
  takes n ((σ, AMatch R ρ p t :: k) :: stk) o' ->
  exists o m, evaluates R ρ p t σ o /\ m < n /\ takes m (with_actions k o ++ stk) o'.

Section Smaller.
Variable N : nat.
Hypothesis smaller : forall n, n < N -> contains n.

Lemma contains_each R ρ ps ts :
  (forall n σ k stk o', n < N -> takes n ((σ, match_children R ρ ps ts ++ k) :: stk) o' ->
   exists o m, evaluates_children R ρ ps ts σ o /\ m <= n /\
     takes m (with_actions k o ++ stk) o') ->
  forall σs n k stk o', n < N ->
  takes n (with_actions (match_children R ρ ps ts ++ k) σs ++ stk) o' ->
  exists o m, evaluates_each R ρ ps ts σs o /\ m <= n /\ takes m (with_actions k o ++ stk) o'.
Proof.
  intros One. induction σs as [| σ σs IH]; intros n k stk o' L H.
  - exists [], n. repeat split; auto. constructor.
  - destruct (One n σ k _ _ L H) as (o1 & m1 & E1 & L1 & H1).
    destruct (takes_split _ _ _ _ H1) as (a & b & oa & ob & Ha & Hb & -> & ->).
    destruct (IH b k stk ob) as (o2 & m2 & E2 & L2 & H2); [lia | exact Hb |].
    exists (o1 ++ o2), (a + m2). split; [now constructor |]. split; [lia |].
    rewrite with_actions_app. now apply takes_app.
Qed.

Lemma contains_children R ρ ps : forall ts n σ k stk o',
  length ps = length ts -> n < N -> takes n ((σ, match_children R ρ ps ts ++ k) :: stk) o' ->
  exists o m, evaluates_children R ρ ps ts σ o /\ m <= n /\ takes m (with_actions k o ++ stk) o'.
Proof.
  induction ps as [| p ps IH]; intros [| t ts] n σ k stk o' E L H; try discriminate.
  - exists [σ], n. repeat split; auto. constructor.
  - destruct (smaller n L _ _ _ _ _ _ _ _ H) as (o1 & m1 & E1 & L1 & H1).
    injection E as E.
    destruct (contains_each R ρ ps ts) with (σs := o1) (n := m1) (k := k) (stk := stk) (o' := o')
      as (o2 & m2 & E2 & L2 & H2); [eauto | lia | exact H1 |].
    exists o2, m2. split; [econstructor; eauto |]. split; [lia | exact H2].
Qed.

Lemma contains_constraint R ρ p x : forall σs n k stk o', n < N ->
  takes n (with_actions (AMatchC R ρ p x :: k) σs ++ stk) o' ->
  exists o m, evaluates_constraint R ρ p x σs o /\ m <= n /\ takes m (with_actions k o ++ stk) o'.
Proof.
  induction σs as [| σ σs IH]; intros n k stk o' L H.
  - exists [], n. repeat split; auto. constructor.
  - simpl in H. inversion H as [| | n' ? ? ? ? ? H']; subst. cbn [do_action] in H'.
    assert (Skip : (forall t, (get σ ∘ ρ) x <> Some (VTerm t)) ->
      takes n' (with_actions (AMatchC R ρ p x :: k) σs ++ stk) o' ->
      exists o m, evaluates_constraint R ρ p x (σ :: σs) o /\ m <= S n' /\
        takes m (with_actions k o ++ stk) o').
    { intros No H1. destruct (IH n' k stk o') as (o & m & E & Lm & H2); [lia | exact H1 |].
      exists o, m. split; [now apply E_con_skip |]. split; [lia | exact H2]. }
    destruct ((get σ ∘ ρ) x) as [[t | | |] |] eqn:Q; try (apply Skip; [congruence | exact H']).
    destruct (smaller n' ltac:(lia) _ _ _ _ _ _ _ _ H') as (o1 & m1 & E1 & L1 & H1).
    destruct (takes_split _ _ _ _ H1) as (a & b & oa & ob & Ha & Hb & -> & ->).
    destruct (IH b k stk ob) as (o2 & m2 & E2 & L2 & H2); [lia | exact Hb |].
    exists (o1 ++ o2), (a + m2). split; [econstructor; eauto |]. split; [lia |].
    rewrite with_actions_app. now apply takes_app.
Qed.
End Smaller.

Lemma all_contain n : contains n.
Proof.
  induction n as [n IH] using (well_founded_induction Wf_nat.lt_wf).
  intros R ρ p t σ k stk o' H. inversion H as [| | N ? ? ? ? ? H']; subst. cbn [do_action] in H'.
  assert (Smaller : forall m, m < S N -> contains m) by auto.
  destruct p as [x | f ps | F ps | p q | x p | p g | p x e | p p' x | xs ins outs small b ys | i ys];
    cbn [match_pattern] in H'.
  - (* var *) exists (option_list (bind_name σ ρ x (VTerm t))), N. split; [constructor |].
    split; [lia |]. destruct (bind_name _ _ _ _); exact H'.
  - (* op *) destruct (dest t) as [g ts] eqn:D. destruct (_ && _) eqn:Q.
    + apply andb_prop in Q as [Q1 Q2]. apply Nat.eqb_eq in Q1, Q2. subst g.
      destruct (contains_children _ Smaller R ρ ps ts N σ k stk o' Q2 ltac:(lia) H')
        as (o & m & E & L & H1).
      exists o, m. split; [eapply E_op; eauto |]. split; [lia | exact H1].
    + exists [], N. split; [| split; [lia | exact H']]. eapply E_op_fail; [exact D |].
      apply andb_false_iff in Q as [Q | Q]; apply Nat.eqb_neq in Q; auto.
  - (* fun *) destruct (dest t) as [f ts] eqn:D. destruct (Nat.eqb _ _) eqn:Q.
    + apply Nat.eqb_eq in Q.
      destruct (contains_each (S N) R ρ ps ts) with (σs := option_list (bind_name σ ρ F (VOp f)))
        (n := N) (k := k) (stk := stk) (o' := o') as (o & m & E & L & H1).
      * intros. eapply contains_children; eauto.
      * lia.
      * destruct (bind_name _ _ _ _); exact H'.
      * exists o, m. split; [eapply E_fun; eauto |]. split; [lia | exact H1].
    + apply Nat.eqb_neq in Q. exists [], N. split; [eapply E_fun_fail; eauto |].
      split; [lia | exact H'].
  - (* alt *) destruct (Smaller N ltac:(lia) _ _ _ _ _ _ _ _ H') as (o1 & m1 & E1 & L1 & H1).
    destruct (takes_split _ _ _ _ H1) as (a & b' & oa & ob & Ha & Hb & -> & ->).
    destruct (Smaller b' ltac:(lia) _ _ _ _ _ _ _ _ Hb) as (o2 & m2 & E2 & L2 & H2).
    exists (o1 ++ o2), (a + m2). split; [now constructor |]. split; [lia |].
    rewrite with_actions_app. now apply takes_app.
  - (* ex *) destruct (Smaller N ltac:(lia) _ _ _ _ _ _ _ _ H') as (o1 & m1 & E1 & L1 & H1).
    destruct (takes_filter (is_bound (LFresh (next σ))) (ACheck (LFresh (next σ))) k) with (2 := H1)
      as (m & L & H2).
    { intros σ'. unfold is_bound. simpl. now destruct (get σ' _). }
    exists (filter (is_bound (LFresh (next σ))) o1), m. split; [eapply E_ex; eauto |].
    split; [lia | exact H2].
  - (* guard *) destruct (Smaller N ltac:(lia) _ _ _ _ _ _ _ _ H') as (o1 & m1 & E1 & L1 & H1).
    destruct (takes_filter (guard_holds ρ g) (AGuard ρ g) k) with (2 := H1) as (m & L & H2).
    { intros σ'. unfold guard_holds. simpl. now destruct (geval _ _) as [[] |]. }
    exists (filter (guard_holds ρ g) o1), m. split; [now constructor |]. split; [lia | exact H2].
  - (* let *) destruct (Smaller N ltac:(lia) _ _ _ _ _ _ _ _ H') as (o1 & m1 & E1 & L1 & H1).
    destruct (takes_flat_map (assign ρ x e) (ALet ρ x e) k) with (2 := H1) as (m & L & H2).
    { intros σ'. unfold assign. simpl. now destruct (eval _ _). }
    eexists _, m. split; [apply E_let, E1 |]. split; [lia | exact H2].
  - (* match *) destruct (Smaller N ltac:(lia) _ _ _ _ _ _ _ _ H') as (o1 & m1 & E1 & L1 & H1).
    destruct (contains_constraint _ Smaller _ _ _ _ _ m1 _ _ _ ltac:(lia) H1) as (o2 & m2 & E2 & L2 & H2).
    exists o2, m2. split; [econstructor; eauto |]. split; [lia | exact H2].
  - (* mu *) destruct (Smaller N ltac:(lia) _ _ _ _ _ _ _ _ H') as (o1 & m1 & E1 & L1 & H1).
    exists o1, m1. split; [now constructor |]. split; [lia | exact H1].
  - (* call *) destruct (skipn i R) as [| d R'] eqn:D.
    + exists [], N. split; [now constructor |]. split; [lia | exact H'].
    + destruct (Smaller N ltac:(lia) _ _ _ _ _ _ _ _ H') as (o1 & m1 & E1 & L1 & H1).
      exists o1, m1. split; [econstructor; eauto |]. split; [lia | exact H1].
Qed.

Lemma call_evaluates R ρ p (t : T) σ o : [(σ, [AMatch R ρ p t])] ⇓ o -> evaluates R ρ p t σ o.
Proof.
  intros H. destruct (answers_take _ _ H) as [n H1].
  destruct (all_contain n _ _ _ _ _ _ _ _ H1) as (o1 & m & E & _ & H2).
  rewrite app_nil_r in H2. apply takes_answers in H2.
  now rewrite (answers_deterministic _ _ _ H2 (with_actions_done o1)).
Qed.

Theorem machine_evaluates p (t : T) o : init p t ⇓ o -> evaluates [] ρ0 p t empty o.
Proof. apply call_evaluates. Qed.

(** ** Some fuel is enough *)

Definition enumerates R ρ p t σ o : Prop :=
  exists n, forall m, n <= m -> enumerate m R ρ p t σ = Some o.

Lemma evaluates_enumerates_mut :
  (forall R ρ p t σ o, evaluates R ρ p t σ o -> enumerates R ρ p t σ o) /\
  (forall R ρ ps ts σ o, evaluates_children R ρ ps ts σ o ->
     exists n, forall m, n <= m -> enumerate_children (enumerate m R ρ) ps ts σ = Some o) /\
  (forall R ρ ps ts σs o, evaluates_each R ρ ps ts σs o ->
     exists n, forall m, n <= m ->
       each_store (enumerate_children (enumerate m R ρ) ps ts) σs = Some o) /\
  (forall R ρ p x σs o, evaluates_constraint R ρ p x σs o ->
     exists n, forall m, n <= m ->
       each_store (fun σ' => match (get σ' ∘ ρ) x with
                             | Some (VTerm t') => enumerate m R ρ p t' σ'
                             | _ => Some []
                             end) σs = Some o).
Proof.
  (* The fuel of the parts together, and one more where a form is entered. *)
  assert (Enter : forall (P : nat -> Prop) n, (forall m, n <= m -> P (S m)) ->
    exists n', forall m, n' <= m -> P m).
  { intros P n H. exists (S n). intros [| m] L; [lia | apply H; lia]. }
  apply evaluates_mutind; unfold enumerates; intros;
    repeat match goal with H : exists n, forall m, _ |- _ => destruct H as [? H] end.
  - (* var *) apply (Enter _ 0). reflexivity.
  - (* op *) apply (Enter _ x). intros m L. cbn [enumerate]. rewrite e, e0, !Nat.eqb_refl. simpl. auto.
  - (* op_fail *) apply (Enter _ 0). intros m _. cbn [enumerate]. rewrite e.
    destruct (_ && _) eqn:Q; auto. apply andb_prop in Q as [Q1 Q2]. apply Nat.eqb_eq in Q1, Q2. tauto.
  - (* fun *) apply (Enter _ x). intros m L. cbn [enumerate]. rewrite e, e0, Nat.eqb_refl. auto.
  - (* fun_fail *) apply (Enter _ 0). intros m _. cbn [enumerate]. rewrite e.
    destruct (Nat.eqb_spec (length ps) (length ts)); tauto.
  - (* alt *) apply (Enter _ (x + x0)). intros m L. cbn [enumerate]. rewrite H, H0 by lia. reflexivity.
  - (* ex *) apply (Enter _ x0). intros m L. cbn [enumerate]. subst l. now rewrite H.
  - (* guard *) apply (Enter _ x). intros m L. cbn [enumerate]. now rewrite H.
  - (* let *) apply (Enter _ x0). intros m L. cbn [enumerate]. now rewrite H.
  - (* match *) apply (Enter _ (x0 + x1)). intros m L. cbn [enumerate]. rewrite H by lia. simpl.
    apply H0. lia.
  - (* mu *) apply (Enter _ x). intros m L. cbn [enumerate]. auto.
  - (* call *) apply (Enter _ x). intros m L. cbn [enumerate]. rewrite e. auto.
  - (* call_fail *) apply (Enter _ 0). intros m _. cbn [enumerate]. now rewrite e.
  - (* nil *) exists 0. reflexivity.
  - (* cons *) exists (x + x0). intros m L. cbn [enumerate_children]. rewrite H by lia. simpl.
    apply H0. lia.
  - (* each_nil *) exists 0. reflexivity.
  - (* each_cons *) exists (x + x0). intros m L. cbn [each_store]. rewrite H, H0 by lia. reflexivity.
  - (* con_nil *) exists 0. reflexivity.
  - (* con_cons *) exists (x0 + x1). intros m L. cbn [each_store]. rewrite e, H, H0 by lia. reflexivity.
  - (* con_skip *) exists x0. intros m L. cbn [each_store]. rewrite H by lia.
    destruct ((get σ ∘ ρ) x) as [[t | | |] |] eqn:Q; try reflexivity. now destruct (n t).
Qed.

Theorem machine_enumerate p (t : T) o :
  init p t ⇓ o <-> exists n, enumerate n [] ρ0 p t empty = Some o.
Proof.
  split; [| intros [n E]; eapply enumerate_machine, E]. intros H.
  destruct (proj1 evaluates_enumerates_mut _ _ _ _ _ _ (machine_evaluates p t o H)) as [n E].
  exists n. auto.
Qed.
End Ordered.
