(** * After the window: no later node tells the two graphs apart

    The same nodes run on two states that differ in the memory of moved roots alone.  Writes stay clear
    of that memory, so every later value, effect and draw is the same. *)

From Coq Require Import List Bool PeanoNat.
Import ListNotations.
From PyPM Require Import Names.
From PyPM.legality Require Import Execution Legal Equation Windows Origins Replacing.

Section Afterwards.
Context {τ : Torch}.
Variable w : rewrite.
Variables h h' : name -> storage.        (* of the moved roots: before the rewrite, and after it *)

Hypothesis old_home : forall r, In r (moved w) -> exists o, In o (old_origins w r) /\ stands_for o (h r).
Hypothesis new_home : forall r, In r (moved w) -> exists o, In o (new_origins w r) /\ stands_for o (h' r).
Hypothesis together_homes : forall r r', In r (moved w) -> In r' (moved w) ->
  together w (Root r) (Root r') = true -> h r = h r' /\ h' r = h' r'.

Notation linked := (linked w h h').

(** The two states, as long as the names [D] are known. *)
Record alike (O : origins) (D : list name) (σ σ' : state) : Prop := {
  alike_mode : now_mode σ' = now_mode σ;
  alike_rest : rest σ' = rest σ;
  alike_look : forall n, In n D -> look σ' n = look σ n;
  alike_linked : forall n, In n D -> exists o, In o (O n) /\ linked σ σ' o n;
  alike_given : forall k i, heap σ (Given k i) = heap σ' (Given k i)
}.

(** ** Writes *)

(** Memory that has the same content in both states, and is that of no moved root. *)
Definition common (hp hp' : memory) (s : storage) : Prop :=
  hp s = hp' s /\ forall r, In r (moved w) -> s <> h r /\ s <> h' r.

Lemma safe_common σ σ' o n :
  safe_to_write w o = true -> linked σ σ' o n ->
  home (env σ' n) = home (env σ n) /\ same_part (path (env σ n)) (path (env σ' n)) /\
  common (heap σ) (heap σ') (home (env σ n)).
Proof.
  unfold safe_to_write. rewrite andb_true_iff, negb_true_iff, forallb_forall. intros [F A] L.
  assert (X : stands_for o (home (env σ n)) /\ home (env σ' n) = home (env σ n) /\
              same_part (path (env σ n)) (path (env σ' n)) /\
              heap σ (home (env σ n)) = heap σ' (home (env σ n))).
  { destruct o; [exact L | exact L | discriminate F]. }
  destruct X as (S & H & P & E). repeat split; auto; try apply P; intros C;
    specialize (A r H0); apply andb_true_iff in A as [A1 A2];
    rewrite negb_true_iff in A1, A2; unfold among in A1, A2.
  - destruct (old_home r H0) as (o' & I & S'). rewrite <- C in S'.
    rewrite (stands_for_one _ _ _ S S') in A1.
    destruct (in_dec origin_eq_dec o' (old_origins w r)) as [| N]; [discriminate | exact (N I)].
  - destruct (new_home r H0) as (o' & I & S'). rewrite <- C in S'.
    rewrite (stands_for_one _ _ _ S S') in A2.
    destruct (in_dec origin_eq_dec o' (new_origins w r)) as [| N]; [discriminate | exact (N I)].
Qed.

(** Writing the same to the same part of common memory keeps agreement wherever there was some, and
    leaves the memory of moved roots as it is. *)
Record kept (hp hp' gp gp' : memory) : Prop := {
  kept_agreement : forall s, hp s = hp' s -> gp s = gp' s;
  kept_old : forall r, In r (moved w) -> gp (h r) = hp (h r);
  kept_new : forall r, In r (moved w) -> gp' (h' r) = hp' (h' r)
}.

Lemma kept_refl hp hp' : kept hp hp' hp hp'.
Proof. now split. Qed.

Lemma kept_trans hp hp' gp gp' fp fp' : kept hp hp' gp gp' -> kept gp gp' fp fp' -> kept hp hp' fp fp'.
Proof.
  intros [A B C] [A' B' C']. split; auto; intros r I; [rewrite B' | rewrite C']; auto.
Qed.

Lemma write_kept hp hp' t t' v :
  home t' = home t -> same_part (path t) (path t') -> common hp hp' (home t) ->
  kept hp hp' (write hp t v) (write hp' t' v).
Proof.
  intros H [_ P] [E A]. unfold write. rewrite H. split.
  - intros s Es. unfold update. destruct (storage_eq_dec (home t) s); [| exact Es].
    now rewrite <- E, P.
  - intros r I. apply update_other. now apply A.
  - intros r I. apply update_other. now apply A.
Qed.

Lemma writes_kept O D σ σ' args new is :
  alike O D σ σ' -> incl args D ->
  forallb (fun i => match nth_error args i with
                    | Some a => forallb (safe_to_write w) (O a)
                    | None => true
                    end) is = true ->
  kept (heap σ) (heap σ') (fold_left (write_argument σ args new) is (heap σ))
    (fold_left (write_argument σ' args new) is (heap σ')).
Proof.
  intros A K. assert (G : forall is hp hp',
    kept (heap σ) (heap σ') hp hp' ->
    forallb (fun i => match nth_error args i with
                    | Some a => forallb (safe_to_write w) (O a)
                    | None => true
                    end) is = true ->
    kept (heap σ) (heap σ') (fold_left (write_argument σ args new) is hp)
      (fold_left (write_argument σ' args new) is hp')).
  { induction is0 as [| i is0 IH]; intros hp hp' X Sf; [exact X |]. simpl in Sf |- *.
    apply andb_true_iff in Sf as [Si Sf]. apply IH; [| exact Sf]. eapply kept_trans; [exact X |].
    unfold write_argument. destruct (nth_error args i) as [a |] eqn:Na; [| apply kept_refl].
    destruct (alike_linked _ _ _ _ A a) as (o & Io & L); [apply K; eapply nth_error_In; eauto |].
    rewrite forallb_forall in Si. destruct (safe_common _ _ _ _ (Si o Io) L) as (H & P & E & F).
    apply write_kept; auto. split; [apply (kept_agreement _ _ _ _ X), E | exact F]. }
  apply G, kept_refl.
Qed.

(** ** One step *)

Lemma alike_surround O D σ σ' f : alike O D σ σ' -> surround f σ' = surround f σ.
Proof.
  intros [M R _ _ _]. unfold rest in R. injection R as G H. unfold surround. now rewrite M, G, H.
Qed.

Lemma alike_step O D σ σ' n d :
  alike O D σ σ' ->
  incl (reads d) D -> ~ In n D ->
  (forall m, In m D -> home (env σ m) <> Made n /\ home (env σ' m) <> Made n) ->
  writes_apart w O (n, d) = true ->
  alike (assign O n (origins_of O (n, d))) (n :: D) (step σ (n, d)) (step σ' (n, d)).
Proof.
  intros A K N Apart Wr. destruct d as [f args | a].
  2: { destruct A as [M R L Li G]. split; auto; intros m I; simpl.
       - unfold look. simpl. unfold bind. destruct (Nat.eqb_spec n m) as [<- | E].
         + apply L, K. now left.
         + apply L. destruct I; [congruence | auto].
       - destruct (Nat.eq_dec n m) as [<- | E].
         + rewrite assign_same. destruct (Li a) as (o & Io & X); [apply K; now left |].
           exists o. split; [exact Io |]. unfold linked in *. simpl. now rewrite !bind_same.
         + rewrite assign_other by exact E. destruct (Li m) as (o & Io & X).
           { destruct I; [congruence | auto]. }
           exists o. split; [exact Io |]. unfold linked in *. simpl. now rewrite !bind_other. }
  simpl in K.
  assert (V : map (look σ') args = map (look σ) args).
  { apply map_agree. intros b I. apply (alike_look _ _ _ _ A), K, I. }
  pose proof (alike_surround _ _ _ _ f A) as C.
  unfold writes_apart in Wr. simpl in Wr.
  pose proof (writes_kept O D σ σ' args
    (written f (surround f σ) (map (look σ) args)) (writes f) A K Wr) as Kp.
  simpl. rewrite V, C. set (c := surround f σ) in *. set (vs := map (look σ) args) in *.
  set (g := fold_left (write_argument σ args (written f c vs)) (writes f) (heap σ)) in *.
  set (g' := fold_left (write_argument σ' args (written f c vs)) (writes f) (heap σ')) in *.
  destruct A as [M R L Li G].
  (* what was known, in the memory after the writes *)
  assert (Old : forall m, In m D -> exists o, In o (O m) /\
    (linked (State g (env σ) (now_mode σ) (now_generator σ) (history σ))
            (State g' (env σ') (now_mode σ') (now_generator σ') (history σ')) o m)).
  { intros m I. destruct (Li m I) as (o & Io & X). exists o. split; [exact Io |].
    unfold linked in *. simpl. destruct o; auto;
      destruct X as (X1 & X2 & X3 & X4); repeat split; auto; try apply X3;
      now apply (kept_agreement _ _ _ _ Kp). }
  assert (Look : forall m, In m D ->
    look_at (path (env σ' m)) (g' (home (env σ' m))) = look_at (path (env σ m)) (g (home (env σ m)))).
  { intros m I. destruct (Li m I) as (o & Io & X). unfold linked in X.
    assert (F : (home (env σ' m) = home (env σ m) /\ same_part (path (env σ m)) (path (env σ' m)) /\
                 heap σ (home (env σ m)) = heap σ' (home (env σ m))) \/
                (exists r, In r (moved w) /\ home (env σ m) = h r /\ home (env σ' m) = h' r)).
    { destruct o; [left; tauto | left; tauto | right; eauto]. }
    destruct F as [(F1 & [F2 _] & F3) | (r & F1 & F2 & F3)].
    - rewrite F1, <- (kept_agreement _ _ _ _ Kp _ F3). symmetry. apply F2.
    - specialize (L m I). unfold look in L. rewrite F2, F3 in *.
      now rewrite (kept_old _ _ _ _ Kp r F1), (kept_new _ _ _ _ Kp r F1). }
  assert (Rest : forall x, rest (State x (env σ') (now_mode σ')
      (if draws f then next_generator f c vs else now_generator σ')
      (if acts f then history σ' ++ [(f, vs)] else history σ')) =
    rest (State x (env σ) (now_mode σ)
      (if draws f then next_generator f c vs else now_generator σ)
      (if acts f then history σ ++ [(f, vs)] else history σ))).
  { intros x. unfold rest in *. simpl. injection R as -> ->. reflexivity. }
  destruct (viewed f args c vs) as [b |] eqn:Vw; simpl.
  - pose proof (K b (viewed_in _ _ _ _ _ Vw)) as Ib. split; simpl.
    + now rewrite M.
    + apply (Rest g).
    + intros m I. unfold look. simpl. unfold bind. destruct (Nat.eqb_spec n m) as [<- | E]; simpl.
      * rewrite !look_at_app. simpl. now rewrite (Look b Ib).
      * apply Look. destruct I; [congruence | auto].
    + intros m I. destruct (Nat.eq_dec n m) as [<- | E].
      * rewrite assign_same. destruct (Old b Ib) as (o & Io & X). exists o.
        split; [eapply origin_viewed; eauto |]. unfold linked in *. simpl in *.
        rewrite !bind_same. simpl. destruct o; auto;
          destruct X as (X1 & X2 & X3 & X4); repeat split; auto;
          apply same_part_app; auto using same_part_refl.
      * rewrite assign_other by exact E. destruct (Old m) as (o & Io & X).
        { destruct I; [congruence | auto]. }
        exists o. split; [exact Io |]. unfold linked in *. simpl in *. now rewrite !bind_other.
    + intros k i. now apply (kept_agreement _ _ _ _ Kp).
  - assert (U : forall m, In m D ->
      update g (Made n) (result f c vs) (home (env σ m)) = g (home (env σ m)) /\
      update g' (Made n) (result f c vs) (home (env σ' m)) = g' (home (env σ' m))).
    { intros m I. destruct (Apart m I). split; apply update_other; congruence. }
    split; simpl.
    + now rewrite M.
    + apply (Rest (update g (Made n) (result f c vs))).
    + intros m I. unfold look. simpl. unfold bind. destruct (Nat.eqb_spec n m) as [<- | E]; simpl.
      * now rewrite !update_same.
      * destruct I as [-> | I]; [congruence |]. destruct (U m I) as [-> ->]. now apply Look.
    + intros m I. destruct (Nat.eq_dec n m) as [<- | E].
      * rewrite assign_same. exists (OMade n). split; [eapply origin_made; eauto |].
        unfold linked. simpl. rewrite !bind_same. simpl.
        repeat split; auto. now rewrite !update_same.
      * rewrite assign_other by exact E. destruct I as [-> | I]; [congruence |].
        destruct (Old m I) as (o & Io & X). exists o. split; [exact Io |].
        unfold linked in *. simpl in *. rewrite !bind_other by exact E.
        destruct (U m I) as [U1 U2]. destruct o; auto;
          destruct X as (X1 & X2 & X3 & X4); rewrite X2 in U2; repeat split; auto; try apply X3;
          now rewrite U1, U2.
    + intros k i. rewrite !update_other by discriminate. now apply (kept_agreement _ _ _ _ Kp).
Qed.

(** ** All of them *)

Lemma alike_run g : forall O D E E' σ σ',
  alike O D σ σ' ->
  scoped E g = true -> scoped E' g = true -> incl D E -> incl D E' ->
  bounded σ E -> bounded σ' E' ->
  scoped D g = true ->
  all_apart w O g = true ->
  alike (trace g O) (rev (names g) ++ D) (run g σ) (run g σ').
Proof.
  induction g as [| [n d] g IH]; intros O D E E' σ σ' A S S' I I' B B' Sd Ap; [exact A |].
  simpl in Ap. apply andb_true_iff in Ap as [Wr Ap].
  apply scoped_cons in S as (N & K & S). apply scoped_cons in S' as (N' & K' & S').
  apply scoped_cons in Sd as (Nd & Kd & Sd).
  simpl. rewrite <- app_assoc. simpl.
  apply (IH _ (n :: D) (n :: E) (n :: E') (step σ (n, d)) (step σ' (n, d))); auto.
  - apply alike_step; auto. intros m J. split; intros H.
    + apply N. eapply B; [apply I, J | exact H].
    + apply N'. eapply B'; [apply I', J | exact H].
  - intros m [-> | J]; [now left | right; apply I, J].
  - intros m [-> | J]; [now left | right; apply I', J].
  - now apply step_bounded.
  - now apply step_bounded.
Qed.

(** ** What the caller sees *)

Lemma apart_spec os os' o o' s s' :
  apart os os' = true -> In o os -> In o' os' -> stands_for o s -> stands_for o' s' -> s <> s'.
Proof.
  unfold apart. rewrite forallb_forall. intros A I I' S S' <-. specialize (A o I).
  rewrite (stands_for_one _ _ _ S S') in A. unfold among in A.
  destruct (in_dec origin_eq_dec o' os') as [| N]; [discriminate | exact (N I')].
Qed.

Lemma linked_old σ σ' o n : linked σ σ' o n ->
  exists o', In o' (expanded (old_origins w) o) /\ stands_for o' (home (env σ n)).
Proof.
  destruct o as [k | k | r]; simpl; intros X; [eauto 6 | eauto 6 |]; try tauto.
  - exists (OGiven k). tauto.
  - exists (OMade k). tauto.
  - destruct X as (I & -> & _). now apply old_home.
Qed.

Lemma linked_new σ σ' o n : linked σ σ' o n ->
  exists o', In o' (expanded (new_origins w) o) /\ stands_for o' (home (env σ' n)).
Proof.
  destruct o as [k | k | r]; simpl; intros X.
  - exists (OGiven k). destruct X as (X & -> & _). tauto.
  - exists (OMade k). destruct X as (X & -> & _). tauto.
  - destruct X as (I & _ & ->). now apply new_home.
Qed.

Lemma same_distance_spec σ σ' o o' n m :
  same_distance w o o' = true -> linked σ σ' o n -> linked σ σ' o' m ->
  (home (env σ n) = home (env σ m) <-> home (env σ' n) = home (env σ' m)).
Proof.
  intros Ds L L'. unfold same_distance in Ds. rewrite <- !orb_assoc in Ds.
  apply orb_true_iff in Ds as [Tg | Ds].
  { destruct o as [| | r], o' as [| | r']; try discriminate. simpl in L, L'.
    destruct L as (I & -> & ->), L' as (I' & -> & ->).
    destruct (together_homes r r' I I' Tg) as [-> ->]. tauto. }
  destruct (origin_eq_dec o o') as [<- | N].
  - clear Ds. destruct o; simpl in L, L'.
    + destruct L as (_ & -> & _), L' as (_ & -> & _). tauto.
    + destruct L as (_ & -> & _), L' as (_ & -> & _). tauto.
    + destruct L as (_ & -> & ->), L' as (_ & -> & ->). tauto.
  - simpl in Ds. apply orb_true_iff in Ds as [Ds | Ds]; apply andb_true_iff in Ds as [D1 D2].
    + assert (X : forall o n, linked σ σ' o n -> negb (is_root o) = true ->
        home (env σ' n) = home (env σ n)).
      { intros [| |] k Lk F; simpl in Lk; [tauto | tauto | discriminate]. }
      rewrite (X _ _ L D1), (X _ _ L' D2). tauto.
    + destruct (linked_old _ _ _ _ L) as (a & Ia & Sa), (linked_old _ _ _ _ L') as (b & Ib & Sb).
      destruct (linked_new _ _ _ _ L) as (c & Ic & Sc), (linked_new _ _ _ _ L') as (e & Ie & Se).
      pose proof (apart_spec _ _ _ _ _ _ D1 Ia Ib Sa Sb).
      pose proof (apart_spec _ _ _ _ _ _ D2 Ic Ie Sc Se). tauto.
Qed.

Lemma alike_outcome D σ σ' :
  alike (trace (after w) (exit w)) D σ σ' ->
  incl (input_names w ++ outputs w) D ->
  visible_apart w = true ->
  same_outcome (input_names w) (outputs w) σ σ'.
Proof.
  intros A K Vs. pose proof (alike_rest _ _ _ _ A) as R. unfold rest in R. injection R as Rg Rh.
  split; auto.
  - apply map_agree. intros n I. symmetry. apply (alike_look _ _ _ _ A). apply K, in_or_app. auto.
  - intros n m In_ Im. unfold visible_apart in Vs. rewrite forallb_forall in Vs.
    specialize (Vs n In_). rewrite forallb_forall in Vs. specialize (Vs m Im).
    destruct (alike_linked _ _ _ _ A n (K n In_)) as (o & Io & L).
    destruct (alike_linked _ _ _ _ A m (K m Im)) as (o' & Io' & L').
    rewrite forallb_forall in Vs. specialize (Vs o Io). rewrite forallb_forall in Vs.
    exact (same_distance_spec _ _ _ _ _ _ (Vs o' Io') L L').
  - apply (alike_given _ _ _ _ A).
  - symmetry. apply (alike_mode _ _ _ _ A).
Qed.
End Afterwards.
