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
Variables t t' : name -> tensor.         (* the moved roots: before the rewrite, and after it *)
Notation h r := (home (t r)).
Notation h' r := (home (t' r)).

Hypothesis old_home : forall r, In r (moved w) -> exists o, In o (old_origins w r) /\ stands_for o (h r).
Hypothesis new_home : forall r, In r (moved w) -> exists o, In o (new_origins w r) /\ stands_for o (h' r).
Hypothesis together_homes : forall r r', In r (moved w) -> In r' (moved w) ->
  together w (Root r) (Root r') = true -> h r = h r' /\ h' r = h' r'.

Notation linked := (linked w t t').

Definition shown (hp : memory) (x : tensor) : value := look_at (path x) (hp (home x)).

(** The two states, as long as the names [D] are known. *)
Record alike (O : origins) (D : list name) (σ σ' : state) : Prop := {
  alike_mode : now_mode σ' = now_mode σ;
  alike_rest : rest σ' = rest σ;
  alike_look : forall n, In n D -> look σ' n = look σ n;
  alike_linked : forall n, In n D -> exists o, In o (O n) /\ linked σ σ' o n;
  alike_given : forall k i, heap σ (Given k i) = heap σ' (Given k i);
  alike_roots : forall r, In r (moved w) -> shown (heap σ) (t r) = shown (heap σ') (t' r)
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

Lemma write_kept hp hp' x x' v :
  home x' = home x -> same_part (path x) (path x') -> common hp hp' (home x) ->
  kept hp hp' (write hp x v) (write hp' x' v).
Proof.
  intros H [_ P] [E A]. unfold write. rewrite H. split.
  - intros s Es. unfold update. destruct (storage_eq_dec (home x) s); [| exact Es].
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
  intros [M R _ _ _ _]. unfold rest in R. injection R as G H. unfold surround. now rewrite M, G, H.
Qed.

Lemma alike_step O D σ σ' n d :
  alike O D σ σ' ->
  incl (reads d) D -> ~ In n D ->
  (forall m, In m D -> home (env σ m) <> Made n /\ home (env σ' m) <> Made n) ->
  (forall r, In r (moved w) -> h r <> Made n /\ h' r <> Made n) ->
  writes_apart w O (n, d) = true ->
  alike (assign O n (origins_of O (n, d))) (n :: D) (step σ (n, d)) (step σ' (n, d)).
Proof.
  intros A K N Apart Roots Wr. destruct d as [f args | a].
  2: { destruct A as [M R L Li G Ro]. split; [auto | auto | | | auto | exact Ro]; intros m I; simpl.
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
  destruct A as [M R L Li G Ro].
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
    { destruct o as [| | r]; [left; tauto | left; tauto | right; exists r; tauto]. }
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
  assert (Shown : forall r, In r (moved w) -> shown g (t r) = shown g' (t' r)).
  { intros r I. unfold shown. rewrite (kept_old _ _ _ _ Kp r I), (kept_new _ _ _ _ Kp r I). now apply Ro. }
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
        rewrite !bind_same. simpl. destruct o.
        -- destruct X as (X1 & X2 & X3 & X4). auto using same_part_app, same_part_refl.
        -- destruct X as (X1 & X2 & X3 & X4). auto using same_part_app, same_part_refl.
        -- destruct X as (X1 & X2 & X3 & p & P & P'). repeat split; auto.
           exists (p ++ [part f c vs]). now rewrite P, P', !app_assoc.
      * rewrite assign_other by exact E. destruct (Old m) as (o & Io & X).
        { destruct I; [congruence | auto]. }
        exists o. split; [exact Io |]. unfold linked in *. simpl in *. now rewrite !bind_other.
    + intros k i. now apply (kept_agreement _ _ _ _ Kp).
    + exact Shown.
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
    + intros r I. destruct (Roots r I). unfold shown. rewrite !update_other by congruence. now apply Shown.
Qed.

(** ** All of them *)

Lemma alike_run g : forall O D E E' σ σ',
  alike O D σ σ' ->
  scoped E g = true -> scoped E' g = true -> incl D E -> incl D E' ->
  bounded σ E -> bounded σ' E' ->
  (forall r k, In r (moved w) -> h r = Made k -> In k E) ->
  (forall r k, In r (moved w) -> h' r = Made k -> In k E') ->
  scoped D g = true ->
  all_apart w O g = true ->
  alike (trace g O) (rev (names g) ++ D) (run g σ) (run g σ').
Proof.
  induction g as [| [n d] g IH]; intros O D E E' σ σ' A S S' I I' B B' R R' Sd Ap; [exact A |].
  simpl in Ap. apply andb_true_iff in Ap as [Wr Ap].
  apply scoped_cons in S as (N & K & S). apply scoped_cons in S' as (N' & K' & S').
  apply scoped_cons in Sd as (Nd & Kd & Sd).
  simpl. rewrite <- app_assoc. simpl.
  apply (IH _ (n :: D) (n :: E) (n :: E') (step σ (n, d)) (step σ' (n, d))); auto.
  - apply alike_step; auto.
    + intros m J. split; intros H.
      * apply N. eapply B; [apply I, J | exact H].
      * apply N'. eapply B'; [apply I', J | exact H].
    + intros r J. split; intros H; [apply N | apply N']; eauto.
  - intros m [-> | J]; [now left | right; apply I, J].
  - intros m [-> | J]; [now left | right; apply I', J].
  - now apply step_bounded.
  - now apply step_bounded.
  - intros r k J H. right. eauto.
  - intros r k J H. right. eauto.
Qed.

(** ** What the caller sees *)

Lemma apart_spec os os' o o' s s' :
  apart os os' = true -> In o os -> In o' os' -> stands_for o s -> stands_for o' s' -> s <> s'.
Proof.
  unfold apart. rewrite forallb_forall. intros A I I' S S' <-. specialize (A o I).
  rewrite (stands_for_one _ _ _ S S') in A. unfold among in A.
  destruct (in_dec origin_eq_dec o' os') as [| N]; [discriminate | exact (N I')].
Qed.

(** The storages that an origin stands for, before the rewrite and after it. *)
Definition stand (o : origin) (s s' : storage) : Prop :=
  match o with
  | Root r => In r (moved w) /\ s = h r /\ s' = h' r
  | o => stands_for o s /\ s' = s
  end.

Lemma linked_stand σ σ' o n : linked σ σ' o n -> stand o (home (env σ n)) (home (env σ' n)).
Proof. destruct o; simpl; tauto. Qed.

Lemma stand_old o s s' : stand o s s' -> exists o', In o' (expanded (old_origins w) o) /\ stands_for o' s.
Proof.
  destruct o as [k | k | r]; simpl; intros X.
  - exists (OGiven k). tauto.
  - exists (OMade k). tauto.
  - destruct X as (I & -> & _). now apply old_home.
Qed.

Lemma stand_new o s s' : stand o s s' -> exists o', In o' (expanded (new_origins w) o) /\ stands_for o' s'.
Proof.
  destruct o as [k | k | r]; simpl; intros X.
  - exists (OGiven k). destruct X as (X & ->). auto.
  - exists (OMade k). destruct X as (X & ->). auto.
  - destruct X as (I & _ & ->). now apply new_home.
Qed.

Lemma distance_apart o o' s s' u u' :
  apart (expanded (old_origins w) o) (expanded (old_origins w) o') &&
  apart (expanded (new_origins w) o) (expanded (new_origins w) o') = true ->
  stand o s s' -> stand o' u u' -> s <> u /\ s' <> u'.
Proof.
  rewrite andb_true_iff. intros [D1 D2] L L'.
  destruct (stand_old _ _ _ L) as (a & Ia & Sa), (stand_old _ _ _ L') as (b & Ib & Sb).
  destruct (stand_new _ _ _ L) as (c & Ic & Sc), (stand_new _ _ _ L') as (e & Ie & Se).
  split; [exact (apart_spec _ _ _ _ _ _ D1 Ia Ib Sa Sb) | exact (apart_spec _ _ _ _ _ _ D2 Ic Ie Sc Se)].
Qed.

Lemma same_distance_spec o o' s s' u u' :
  same_distance w o o' = true -> stand o s s' -> stand o' u u' -> (s = u <-> s' = u').
Proof.
  intros Ds L L'. unfold same_distance in Ds. rewrite <- !orb_assoc in Ds.
  apply orb_true_iff in Ds as [Tg | Ds].
  { destruct o as [| | r], o' as [| | r']; try discriminate. simpl in L, L'.
    destruct L as (I & -> & ->), L' as (I' & -> & ->).
    destruct (together_homes r r' I I' Tg) as [-> ->]. tauto. }
  destruct (origin_eq_dec o o') as [<- | N].
  - clear Ds. destruct o; simpl in L, L'.
    + destruct L as (_ & ->), L' as (_ & ->). tauto.
    + destruct L as (_ & ->), L' as (_ & ->). tauto.
    + destruct L as (_ & -> & ->), L' as (_ & -> & ->). tauto.
  - simpl in Ds. apply orb_true_iff in Ds as [Ds | Ds].
    + apply andb_true_iff in Ds as [D1 D2].
      destruct o, o'; try discriminate; simpl in L, L'; destruct L as (_ & ->), L' as (_ & ->); tauto.
    + destruct (distance_apart _ _ _ _ _ _ Ds L L'). tauto.
Qed.

(** Memory that is as it was is apart from that of a moved root. *)
Lemma moved_apart o r s s' :
  same_distance w o (Root r) = true -> is_root o = false -> In r (moved w) -> stand o s s' ->
  s <> h r /\ s' <> h' r.
Proof.
  intros Ds R I L. assert (N : forall (P : Prop), o = Root r -> P) by (intros P ->; discriminate).
  unfold same_distance in Ds. replace (together w o (Root r)) with false in Ds by (now destruct o).
  destruct (origin_eq_dec o (Root r)) as [E |]; [now apply N |]. rewrite andb_false_r in Ds. simpl in Ds.
  apply (distance_apart _ (Root r) _ _ _ _ Ds L). simpl. auto.
Qed.

Hypothesis apart_seen : visible_apart w = true.
Hypothesis overlaps : forall r s, In r (held w) -> In s (held w) -> h r = h s ->
  same_overlap (path (t r)) (path (t s)) (path (t' r)) (path (t' s)).

Lemma seen_distance n m o o' : In n (visible w) -> In m (visible w) ->
  In o (at_end w n) -> In o' (at_end w m) -> same_distance w o o' = true.
Proof.
  intros In_ Im Io Io'. pose proof apart_seen as A. unfold visible_apart in A.
  rewrite forallb_forall in A. specialize (A n In_).
  rewrite forallb_forall in A. specialize (A m Im).
  rewrite forallb_forall in A. specialize (A o Io). rewrite forallb_forall in A. now apply A.
Qed.

Lemma held_spec r : In r (held w) <->
  In r (moved w) /\ exists n, In n (visible w) /\ In (Root r) (at_end w n).
Proof.
  unfold held. rewrite filter_In, existsb_exists. unfold among.
  split; intros [I (n & V & J)]; split; auto; exists n; split; auto.
  - destruct (in_dec _ _ _); [assumption | discriminate].
  - now destruct (in_dec _ _ _).
Qed.

(** What the caller has, before it writes and after. *)
Record seen (σ σ' : state) : Prop := {
  seen_linked : forall n, In n (visible w) -> exists o, In o (at_end w n) /\ linked σ σ' o n;
  seen_roots : forall r, In r (held w) -> shown (heap σ) (t r) = shown (heap σ') (t' r)
}.

Lemma seen_look σ σ' n : seen σ σ' -> In n (visible w) -> look σ n = look σ' n.
Proof.
  intros [L R] I. destruct (L n I) as (o & Io & X). unfold look.
  assert (Y : stands_for o (home (env σ n)) /\ home (env σ' n) = home (env σ n) /\
      same_part (path (env σ n)) (path (env σ' n)) /\
      heap σ (home (env σ n)) = heap σ' (home (env σ n)) \/
    exists r p, o = Root r /\ In r (held w) /\ env σ n = Tensor (h r) (path (t r) ++ p) /\
      env σ' n = Tensor (h' r) (path (t' r) ++ p)).
  { destruct o as [k | k | r]; [left; exact X | left; exact X | right].
    destruct X as (M & H & H' & p & P & P'). exists r, p. repeat split.
    - apply held_spec. eauto.
    - destruct (env σ n). simpl in *. now subst.
    - destruct (env σ' n). simpl in *. now subst. }
  destruct Y as [(_ & H & [P _] & C) | (r & p & _ & Ir & -> & ->)].
  - rewrite H, <- C. apply P.
  - simpl. rewrite !look_at_app. f_equal. apply R, Ir.
Qed.

Lemma put_at_fits p : forall v u, fits (look_at p v) u -> fits v (put_at p v u).
Proof.
  induction p as [| l p IH]; intros v u F; [exact F |]. simpl. apply put_fits, IH, F.
Qed.

Lemma seen_write σ σ' n u : seen σ σ' -> In n (visible w) -> fits (look σ n) u ->
  seen (overwrite σ n u) (overwrite σ' n u).
Proof.
  intros S I F. pose proof (seen_look _ _ _ S I) as E. destruct S as [L R].
  destruct (L n I) as (o & Io & X).
  pose proof (linked_stand _ _ _ _ X) as St.
  destruct (is_root o) eqn:Ro.
  - (* to a part of a moved root *)
    destruct o as [| | r]; try discriminate. clear Ro St.
    destruct X as (M & H & H' & p & P & P').
    assert (Ir : In r (held w)) by (apply held_spec; eauto).
    set (u' := put_at p (shown (heap σ) (t r)) u).
    assert (W : forall s, heap (overwrite σ n u) s = write (heap σ) (t r) u' s).
    { intros s. unfold overwrite, write, u', shown. simpl. now rewrite H, P, put_at_app. }
    assert (W' : forall s, heap (overwrite σ' n u) s = write (heap σ') (t' r) u' s).
    { intros s. unfold overwrite, write, u'. rewrite (R r Ir). unfold shown. simpl.
      now rewrite H', P', put_at_app. }
    assert (F' : fits (shown (heap σ) (t r)) u').
    { apply put_at_fits. unfold look in F. rewrite H, P, look_at_app in F. exact F. }
    split.
    + intros m J. destruct (L m J) as (q & Iq & Y). exists q. split; [exact Iq |].
      pose proof (linked_stand _ _ _ _ Y) as Sm.
      destruct (is_root q) eqn:Rq; [destruct q; try discriminate; exact Y |].
      destruct (moved_apart q r _ _ (seen_distance _ _ _ _ J I Iq Io) Rq M Sm) as [N N'].
      assert (G : heap (overwrite σ n u) (home (env σ m)) = heap σ (home (env σ m)) /\
                  heap (overwrite σ' n u) (home (env σ m)) = heap σ' (home (env σ m))).
      { rewrite W, W'. unfold write. split; apply update_other; [congruence |].
        destruct q; try discriminate; destruct Sm as [_ Sm]; congruence. }
      destruct G as [G G'].
      destruct q; try discriminate; unfold linked in *; simpl env in *; now rewrite G, G'.
    + intros s Is. unfold shown. rewrite W, W'. unfold write.
      pose proof Is as Is'. apply held_spec in Is' as (Ms & m & J & Im).
      pose proof (same_distance_spec (Root r) (Root s) (h r) (h' r) (h s) (h' s)
        (seen_distance _ _ _ _ I J Io Im) ltac:(simpl; auto) ltac:(simpl; auto)) as D.
      unfold update. destruct (storage_eq_dec (h r) (h s)) as [Q | Q];
        destruct (storage_eq_dec (h' r) (h' s)) as [Q' | Q']; try tauto.
      * apply (overlaps r s Ir Is Q); [apply (R r Ir) | | exact F'].
        rewrite Q, Q'. apply (R s Is).
      * apply (R s Is).
  - (* to memory that is as it was *)
    assert (X' : stands_for o (home (env σ n)) /\ home (env σ' n) = home (env σ n) /\
      same_part (path (env σ n)) (path (env σ' n)) /\
      heap σ (home (env σ n)) = heap σ' (home (env σ n))).
    { destruct o; [exact X | exact X | discriminate]. }
    clear X. destruct X' as (_ & H & [_ P] & C).
    assert (K : forall s, heap σ s = heap σ' s -> heap (overwrite σ n u) s = heap (overwrite σ' n u) s).
    { intros s Q. unfold overwrite, write, update. simpl. rewrite H.
      destruct (storage_eq_dec _ s); [| exact Q]. now rewrite <- C, P. }
    split.
    + intros m J. destruct (L m J) as (q & Iq & Y). exists q. split; [exact Iq |].
      destruct q; unfold linked in *; simpl env in *; intuition.
    + intros r Ir. pose proof Ir as Ir'. apply held_spec in Ir' as (M & m & J & Im).
      destruct (moved_apart o r _ _ (seen_distance _ _ _ _ I J Io Im) Ro M St) as [N N'].
      unfold shown, overwrite, write. simpl. rewrite !update_other by congruence. apply (R r Ir).
Qed.

Lemma seen_shown k : forall σ σ', seen σ σ' -> same_shown k (visible w) σ σ'.
Proof.
  induction k as [| k IH]; intros σ σ' S; split; auto;
    try (apply map_agree; intros n I; now apply seen_look).
  intros n u I F. apply IH. now apply seen_write.
Qed.

Lemma alike_outcome D σ σ' :
  alike (at_end w) D σ σ' ->
  incl (visible w) D ->
  same_outcome (input_names w) (outputs w) σ σ'.
Proof.
  intros A K. pose proof (alike_rest _ _ _ _ A) as R. unfold rest in R. injection R as Rg Rh.
  pose proof (eq_sym (alike_mode _ _ _ _ A)) as M. split; auto.
  - intros k. apply seen_shown. split.
    + intros n I. apply (alike_linked _ _ _ _ A), K, I.
    + intros r I. apply (alike_roots _ _ _ _ A). now apply held_spec in I.
  - intros n m In_ Im.
    destruct (alike_linked _ _ _ _ A n (K n In_)) as (o & Io & L).
    destruct (alike_linked _ _ _ _ A m (K m Im)) as (o' & Io' & L').
    apply (same_distance_spec o o'); eauto using seen_distance, linked_stand.
  - apply (alike_given _ _ _ _ A).
Qed.
End Afterwards.
