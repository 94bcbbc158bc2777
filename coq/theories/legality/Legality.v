(** * Legality, proved: a legal rewrite changes no outcome *)

From Coq Require Import List Bool PeanoNat.
Import ListNotations.
From PyPM Require Import Names.
From PyPM.legality Require Import Execution Legal Equation Windows Origins Replacing Afterwards.

Section Legality.
Context {τ : Torch}.

(** The values at the end of the old window are those that its region computes. *)
Lemma region_satisfied g σ D :
  scoped D g = true -> forallb quiet g = true -> bounded σ D ->
  satisfies (now_mode σ) (look (run g σ)) (filter (fun x => negb (effectful x)) g).
Proof.
  intros S Q B n d I. apply filter_In in I as [I F]. apply negb_true_iff in F.
  apply in_split in I as (p & q & E).
  rewrite (window_value _ _ _ _ (window g σ D S Q B) _ _ _ _ E). now apply (meaning_pure _ _ _ n).
Qed.

Lemma run_app g g' σ : run (g ++ g') σ = run g' (run g σ).
Proof. apply fold_left_app. Qed.

(** What is scoped after either of two beginnings is scoped after what they have in common. *)
Lemma scoped_both g : forall D E E',
  scoped E g = true -> scoped E' g = true -> incl D E ->
  (forall n, In n E -> In n E' -> In n D) -> scoped D g = true.
Proof.
  induction g as [| [n d] g IH]; intros D E E' S S' I X; [reflexivity |].
  apply scoped_cons in S as (N & K & S). apply scoped_cons in S' as (N' & K' & S').
  apply scoped_cons. repeat split; auto.
  - intros a J. apply X; auto.
  - apply (IH _ _ _ S S').
    + intros a [-> | J]; [now left | right; auto].
    + intros a [-> | J] [J' | J']; simpl; auto.
Qed.

Lemma quiet_all g :
  forallb writes_nothing g = true -> forallb keeps_modes g = true -> forallb quiet g = true.
Proof.
  rewrite !forallb_forall. intros W M x I. unfold quiet. now rewrite W, M.
Qed.

(** The equation need only hold at the values that are there: a rule's guard may see to that. *)
Theorem legal_outcome (w : rewrite) (σ : state) :
  is_graph w = true -> legal w = true -> holds_at w σ -> parts_kept w σ -> arranged (inputs w) σ ->
  same_outcome (input_names w) (outputs w) (run (from w) σ) (run (to w) σ).
Proof.
  unfold holds_at, parts_kept, is_graph, legal, well_scoped, from, to. simpl. unfold well_scoped, to.
  rewrite !andb_true_iff.
  intros [S1 O1] ([S2 O2] & Ws & Ms & Ef & Wr & Vs & _). rewrite !run_app. intros Eq Parts Arr.
  rewrite forallb_app, andb_true_iff in Ws, Ms. destruct Ws as [Ws1 Ws2], Ms as [Ms1 Ms2].
  pose proof (quiet_all _ Ws1 Ms1) as Q1. pose proof (quiet_all _ Ws2 Ms2) as Q2.
  rewrite scoped_app, andb_true_iff in S1, S2. destruct S1 as [S0 S1], S2 as [_ S2].
  set (D := rev (names (before w)) ++ input_names w) in *.
  rewrite scoped_app, andb_true_iff in S1, S2. destruct S1 as [S1 A1], S2 as [S2 A2].
  set (σ0 := run (before w) σ) in *.
  assert (B : bounded σ0 D) by (apply bounded_run; [exact S0 | now apply bounded_start]).
  assert (Loc : forall n, In n D -> located (entry w) σ0 n).
  { apply located_run; [exact S0 | now apply located_start]. }
  set (σ1 := run (old w) σ0) in *. set (σ2 := run (new w) σ0) in *.
  assert (W1 : window_spec σ0 D (old w) σ1) by now apply window.
  rewrite (window_mode _ _ _ _ W1) in Eq.
  assert (Here : equation_at w (now_mode σ0) (look σ1)).
  { apply Eq. now apply region_satisfied with D. }
  assert (W2 : window_spec σ0 D (new w) σ2) by now apply window.
  set (common := filter (fun n => mem n (names (old w))) (names (new w)) ++ D).
  assert (Common : forall n, In n common <-> In n D \/ In n (names (new w)) /\ In n (names (old w))).
  { intros n. unfold common. rewrite in_app_iff, filter_In, mem_spec. tauto. }
  assert (R : forall r, In r (moved w) -> In r (names (old w)) /\ In r (names (new w))).
  { intros r I. apply filter_In in I as [I _]. apply filter_In in I as [I J].
    apply mem_spec in J. split; [exact J | eapply names_filter; eauto]. }
  assert (Looks : forall n, In n common -> look σ2 n = look σ1 n).
  { intros n I. apply Common in I. unfold σ2.
    rewrite (new_value w σ0 D) by (auto; tauto). apply evaluated_old with D; auto. unfold of_old. tauto. }
  assert (Start : alike w (env σ1) (env σ2) (exit w) common σ1 σ2).
  { split.
    - now rewrite (window_mode _ _ _ _ W1), (window_mode _ _ _ _ W2).
    - now apply same_rest with D.
    - exact Looks.
    - intros n I. apply Common in I. now apply linked_exit with D.
    - intros k i. rewrite (window_heap _ _ _ _ W1), (window_heap _ _ _ _ W2); congruence.
    - intros r I. symmetry. apply Looks, Common. destruct (R r I). tauto. }
  assert (Bases : forall r, In r (moved w) ->
    home (env σ1 r) = home (env σ1 (bases (old w) r)) /\
    home (env σ2 r) = home (env σ2 (bases (new w) r))).
  { intros r I. destruct (R r I) as [I1 I2].
    destruct (base_spec σ0 D (old w) σ1 S1 W1 (old w) [] ltac:(now rewrite app_nil_r) r)
      as (_ & H1 & _); [now right |].
    destruct (base_spec σ0 D (new w) σ2 S2 W2 (new w) [] ltac:(now rewrite app_nil_r) r)
      as (_ & H2 & _); [now right |]. auto. }
  apply (alike_outcome w (env σ1) (env σ2)) with (D := rev (names (after w)) ++ common); auto.
  - intros r I. apply (located_run (old w) (entry w) σ0 D); auto. apply in_or_app. left.
    apply -> in_rev. now apply R.
  - intros r I. apply (located_run (new w) (entry w) σ0 D); auto. apply in_or_app. left.
    apply -> in_rev. now apply R.
  - intros r r' I I' T. simpl in T. apply andb_true_iff in T as [T1 T2].
    apply Nat.eqb_eq in T1, T2. destruct (Bases r I) as [-> ->], (Bases r' I') as [-> ->].
    now rewrite T1, T2.
  - eapply alike_run; [| | exact Start | exact A1 | exact A2 | | | | | | | |].
    + intros r I. apply (located_run (old w) (entry w) σ0 D); auto. apply in_or_app. left.
      apply -> in_rev. now apply R.
    + intros r I. apply (located_run (new w) (entry w) σ0 D); auto. apply in_or_app. left.
      apply -> in_rev. now apply R.
    + intros n I. apply Common in I. rewrite in_app_iff, <- in_rev. tauto.
    + intros n I. apply Common in I. rewrite in_app_iff, <- in_rev. tauto.
    + apply (window_bounded _ _ _ _ W1).
    + apply (window_bounded _ _ _ _ W2).
    + intros r k I. apply (window_bounded _ _ _ _ W1). apply in_or_app. left. apply -> in_rev. now apply R.
    + intros r k I. apply (window_bounded _ _ _ _ W2). apply in_or_app. left. apply -> in_rev. now apply R.
    + eapply scoped_both; [exact A1 | exact A2 | |].
      * intros n I. apply Common in I. rewrite in_app_iff, <- in_rev. tauto.
      * intros n. rewrite Common, !in_app_iff, <- !in_rev. tauto.
    + exact Wr.
  - intros n I. unfold visible in I. rewrite !in_app_iff, Common, <- in_rev. unfold D. rewrite in_app_iff, <- in_rev.
    apply in_app_iff in I as [I | I]; [tauto |].
    apply subset_spec in O1, O2. specialize (O1 n I). specialize (O2 n I).
    rewrite !names_app, !in_app_iff in O1, O2. tauto.
Qed.

(** ** Rewrites, one after the other *)

Lemma same_shown_look k ns σ σ' : same_shown k ns σ σ' -> map (look σ) ns = map (look σ') ns.
Proof. destruct k; intros [L _]; exact L. Qed.

Lemma same_shown_trans k ns : forall σ σ' σ'',
  same_shown k ns σ σ' -> same_shown k ns σ' σ'' -> same_shown k ns σ σ''.
Proof.
  induction k as [| k IH]; intros σ σ' σ'' [L S] [L' S']; split; auto; try congruence.
  intros n w I F. apply (IH _ (overwrite σ' n w)); [now apply S |]. apply S'; [exact I |].
  now rewrite <- (ext_in_map L n I).
Qed.

Lemma same_outcome_refl ins outs σ : same_outcome ins outs σ σ.
Proof.
  split; auto; try tauto. intros k. revert σ. induction k; split; auto.
Qed.

Lemma same_outcome_trans ins outs σ σ' σ'' :
  same_outcome ins outs σ σ' -> same_outcome ins outs σ' σ'' -> same_outcome ins outs σ σ''.
Proof.
  intros [R S G H N M] [R' S' G' H' N' M']. split; try congruence.
  - intros k. exact (same_shown_trans _ _ _ _ _ (R k) (R' k)).
  - intros n m I J. rewrite (S n m I J). now apply S'.
Qed.

(** A graph becomes another one by legal rewrites, each of the result of those before it. *)
Inductive rewrites (ins : list (name * nat)) (outs : list name) (σ : state) : graph -> graph -> Prop :=
| Rewrites_none g : rewrites ins outs σ g g
| Rewrites_more w g :
    inputs w = ins -> outputs w = outs -> is_graph w = true -> legal w = true ->
    holds_at w σ -> parts_kept w σ -> rewrites ins outs σ (to w) g -> rewrites ins outs σ (from w) g.

Theorem rewrites_outcome ins outs σ g g' :
  arranged ins σ -> rewrites ins outs σ g g' ->
  same_outcome (map fst ins) outs (run g σ) (run g' σ).
Proof.
  intros A Rw. induction Rw as [g | w g <- <- G L E P _ IH]; [apply same_outcome_refl |].
  exact (same_outcome_trans _ _ _ _ _ (legal_outcome w σ G L E P A) IH).
Qed.
End Legality.
