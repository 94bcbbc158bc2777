(** * Inference finds the best lists

    If a pattern passes the checks with any lists, it passes them with those that are inferred.

    A definition is compared with another that differs in its lists: it is _better_ if it asks for no
    more inputs, and leaves bound whatever the other does, inputs aside.  Outputs are found by shrinking
    a list that is never worse, inputs by enlarging one that never asks for more; neither needs what is
    shrunk or enlarged by to be monotone. *)

From Coq Require Import List Bool PeanoNat Lia.
Import ListNotations.
From PyPM Require Import Names Values Terms Guards Patterns Declarative WellFormed Guarded Inference
  Erasure.

(** ** Fixpoints *)

Lemma filter_length_le {A} (f : A -> bool) l : length (filter f l) <= length l.
Proof. induction l as [| a l IH]; simpl; auto. destruct (f a); simpl; lia. Qed.

Lemma inter_shorter D D' : subset D D' = false -> length (inter D D') < length D.
Proof.
  unfold subset, inter. induction D as [| x D IH]; simpl; [discriminate |].
  pose proof (filter_length_le (fun y => mem y D') D).
  destruct (mem x D'); simpl; intros H1; [apply IH in H1 |]; lia.
Qed.

(** What every step of [shrink] keeps, the result has. *)
Lemma shrink_invariant f (P : list name -> Prop) :
  (forall D, P D -> P (inter D (f D))) ->
  forall n D, length D < n -> P D -> P (shrink f n D).
Proof.
  intros H. induction n as [| n IH]; intros D L HD; [lia |]. simpl.
  destruct (subset D (f D)) eqn:E; auto. apply IH; auto.
  pose proof (inter_shorter D (f D) E). lia.
Qed.

Lemma enlarge_invariant f (P : list name -> Prop) :
  (forall D, P D -> P (f D ++ D)) -> forall n D, P D -> P (enlarge f n D).
Proof.
  intros H. induction n as [| n IH]; intros D HD; simpl; auto.
  destruct (subset (f D) D); auto.
Qed.

(** If [f] asks for names in [xs] alone, as many steps as there are names in [xs] suffice. *)
Lemma enlarge_closed f xs :
  (forall D, incl (f D) xs) ->
  forall n D, length (filter (fun x => negb (mem x D)) xs) <= n ->
  incl (f (enlarge f n D)) (enlarge f n D).
Proof.
  intros H. induction n as [| n IH]; intros D L; simpl.
  - intros x I. apply H in I. destruct (mem x D) eqn:M; [now apply mem_spec |].
    assert (In x (filter (fun x => negb (mem x D)) xs)) as J by (apply filter_In; now rewrite M).
    destruct (filter _ xs); [destruct J | simpl in L; lia].
  - destruct (subset (f D) D) eqn:E; [now apply subset_spec |]. apply IH.
    assert (exists y, In y (f D) /\ mem y D = false) as (y & I & N).
    { unfold subset in E. clear -E. induction (f D) as [| y l IHl]; [discriminate |]. simpl in E.
      destruct (mem y D) eqn:M; [| exists y; split; [now left | exact M]].
      destruct (IHl E) as (z & I & N). exists z. split; [now right | exact N]. }
    apply H in I as J. enough (length (filter (fun x => negb (mem x (f D ++ D))) xs) <
      length (filter (fun x => negb (mem x D)) xs)) by lia.
    clear -I N J. assert (Sub : forall x, mem x D = true -> mem x (f D ++ D) = true).
    { intros x M. apply mem_spec, in_or_app. right. now apply mem_spec. }
    assert (Le : forall l, length (filter (fun x => negb (mem x (f D ++ D))) l) <=
      length (filter (fun x => negb (mem x D)) l)).
    { induction l as [| x l IHl]; simpl; auto. destruct (mem x D) eqn:M.
      - rewrite (Sub x M). exact IHl.
      - destruct (mem x (f D ++ D)); simpl; lia. }
    induction xs as [| x xs IHxs]; [destruct J |]. simpl. pose proof (Le xs).
    destruct J as [-> | J].
    + rewrite N. assert (mem y (f D ++ D) = true) as -> by (apply mem_spec, in_or_app; now left).
      simpl. lia.
    + specialize (IHxs J). destruct (mem x D) eqn:M.
      * rewrite (Sub x M). exact IHxs.
      * destruct (mem x (f D ++ D)); simpl; lia.
Qed.

Lemma arg_parameter xs : forall ys x y, arg xs ys x = Some y -> In x xs.
Proof.
  induction xs as [| x' xs IH]; intros [| y' ys] x y E; simpl in E; try discriminate.
  destruct (Nat.eqb_spec x x') as [-> | _]; [now left | right; eauto].
Qed.

Section Best.
Context {Δ : Domain}.

(** ** Inputs and outputs *)

Definition better (d d' : definition) : Prop :=
  d_params d = d_params d' /\ incl (d_in d) (d_in d') /\
  forall x, In x (d_out d') -> In x (d_params d) -> In x (d_in d') \/ In x (d_out d).

Definition unbound (D xs : list name) : list name := filter (fun x => negb (mem x D)) xs.

Lemma unbound_spec x D xs : In x (unbound D xs) <-> In x xs /\ ~ In x D.
Proof.
  unfold unbound. now rewrite filter_In, negb_true_iff, <- not_true_iff_false, mem_spec.
Qed.

Lemma unbound_none D xs : unbound D xs = [] -> incl xs D.
Proof.
  intros E x I. destruct (mem x D) eqn:M; [now apply mem_spec |].
  assert (In x (unbound D xs)) as J; [| rewrite E in J; destruct J].
  apply unbound_spec. split; auto. rewrite <- mem_spec, M. discriminate.
Qed.

(** Calls of the better definition, where calls of the other pass: [S] are names that may be missing. *)
Section Calls.
Variables (d d' : definition) (ys D D' S : list name).
Hypothesis d_better : better d d'.
Hypothesis passes : inputs_bound (d_params d') (d_in d') ys D' = true.
Hypothesis more : incl D' (S ++ D).

Lemma better_outs :
  incl (D' ++ arguments (d_params d') (d_out d') ys) (S ++ D ++ arguments (d_params d) (d_out d) ys).
Proof.
  destruct d_better as (E & _ & H). intros y I. rewrite app_assoc. apply in_or_app.
  apply in_app_or in I as [I | I]; [left; now apply more |].
  apply arguments_spec in I as (x & I & A). rewrite <- E in A.
  destruct (H x I (arg_parameter _ _ _ _ A)) as [J | J].
  - destruct (inputs_bound_spec _ _ _ _ _ passes J) as (y' & A' & J').
    rewrite <- E in A'. rewrite A in A'. injection A' as <-. left. now apply more.
  - right. apply arguments_spec. eauto.
Qed.

Lemma better_missing : incl (unbound D (arguments (d_params d) (d_in d) ys)) S.
Proof.
  destruct d_better as (E & H & _). intros y I. apply unbound_spec in I as [I N].
  apply arguments_spec in I as (x & I & A).
  destruct (inputs_bound_spec _ _ _ _ _ passes (H _ I)) as (y' & A' & J).
  rewrite <- E in A'. rewrite A in A'. injection A' as <-.
  apply more, in_app_or in J as [J | J]; [exact J | contradiction].
Qed.

Lemma better_bound :
  unbound D (arguments (d_params d) (d_in d) ys) = [] ->
  inputs_bound (d_params d) (d_in d) ys D = true.
Proof.
  destruct d_better as (E & H & _). intros U. apply forallb_forall. intros x I.
  destruct (inputs_bound_spec _ _ _ _ _ passes (H _ I)) as (y & A & _).
  rewrite E, A. apply mem_spec, (unbound_none _ _ U), arguments_spec. exists x. now rewrite E.
Qed.
End Calls.

(** *** The checks read only the lists of a context *)

Definition binding_lists (d : definition) := (d_params d, d_in d, d_out d).

Lemma checks_infer_small p : forall R R' R2 D,
  map binding_lists R = map binding_lists R' -> checks R D (infer_small R2 p) = checks R' D p.
Proof.
  assert (Bindings : forall R R', map binding_lists R = map binding_lists R' -> similar_bindings R R').
  { induction R as [| d R IH]; intros [| d' R'] E; try discriminate; [reflexivity |].
    injection E as E1 E2 E3 E4. unfold similar_bindings in *. simpl. f_equal; [congruence | auto]. }
  assert (All : forall R R' R2 ps, map binding_lists R = map binding_lists R' ->
    Forall (fun p => forall R R' R2 D, map binding_lists R = map binding_lists R' ->
      checks R D (infer_small R2 p) = checks R' D p) ps ->
    forall D, thread_check (bound_after R) (checks R) D (map (infer_small R2) ps) =
      thread_check (bound_after R') (checks R') D ps).
  { intros R R' R2 ps E. induction 1 as [| q ps Hq _ IH]; intros D; simpl; auto.
    rewrite (Hq R R'), (bound_after_infer_small q R R') by auto. now rewrite IH. }
  induction p as [x | f ps IH | F ps IH | p q IHp IHq | x p IH | p g IH | p x e IH
                 | p p' x IHp IHp' | xs ins outs small b ys IH | i ys] using pattern_ind';
    intros R R' R2 D E; simpl; auto.
  - now rewrite (IHp R R'), (IHq R R').
  - now rewrite (IH R R'), (bound_after_infer_small p R R') by auto.
  - now rewrite (IH R R'), (bound_after_infer_small p R R') by auto.
  - now rewrite (IH R R'), (bound_after_infer_small p R R') by auto.
  - now rewrite (IHp R R'), (IHp' R R'), (bound_after_infer_small p R R') by auto.
  - match goal with |- context [Def xs ins outs ?s ?b' :: R] =>
      assert (E' : map binding_lists (Def xs ins outs s b' :: R) =
        map binding_lists (Def xs ins outs small b :: R')) by (simpl; now rewrite E) end.
    now rewrite (IH _ _ _ _ E'), (bound_after_infer_small b _ _ _ _ (Bindings _ _ E')).
  - assert (N : option_map binding_lists (nth_error R i) = option_map binding_lists (nth_error R' i))
      by (rewrite <- !nth_error_map; now rewrite E).
    destruct (nth_error R i), (nth_error R' i); try discriminate; auto.
    injection N as -> -> _. reflexivity.
Qed.

(** The same without a pass: contexts that differ in bodies alone. *)
Lemma checks_same_lists p : forall R R' D,
  map binding_lists R = map binding_lists R' -> checks R D p = checks R' D p.
Proof.
  intros R R' D E. rewrite <- (checks_infer_small p R R' [] D E). symmetry.
  now apply checks_infer_small.
Qed.

(** *** What is missing is not bound *)

Definition missing_children (R : recursion) : list name -> list pattern -> list name :=
  fix all D ps :=
    match ps with
    | [] => []
    | p :: ps => missing R D p ++ all (bound_after R D p) ps
    end.

Lemma missing_unbound p : forall R D x, In x (missing R D p) -> ~ In x D.
Proof.
  assert (All : forall R ps, Forall (fun p => forall R D x, In x (missing R D p) -> ~ In x D) ps ->
    forall D x, In x (missing_children R D ps) -> ~ In x D).
  { intros R. induction 1 as [| q ps Hq _ IH]; intros D x I; simpl in I; [destruct I |].
    apply in_app_or in I as [I | I]; [eauto |]. intros J. apply (IH _ _ I), bound_after_extensive, J. }
  assert (Un : forall D' D xs x, incl D D' -> In x (unbound D' xs) -> ~ In x D).
  { intros D' D xs x L I J. apply unbound_spec in I as [_ N]. auto. }
  induction p as [x | f ps IH | F ps IH | p q IHp IHq | x p IH | p g IH | p x e IH
                 | p p' x IHp IHp' | xs ins outs small b ys IH | i ys] using pattern_ind';
    intros R D y I; cbn [missing] in I; try (destruct I; fail).
  - eapply All; eauto.
  - intros J. eapply (All R ps IH); [exact I | now right].
  - apply in_app_or in I as [I | I]; eauto.
  - apply without_spec in I as [I N]. intros J. apply (IH _ _ _ I), without_spec. auto.
  - apply in_app_or in I as [I | I]; [eauto |]. eapply Un; [| exact I]. apply bound_after_extensive.
  - apply in_app_or in I as [I | I]; [eauto |]. eapply Un; [| exact I]. apply bound_after_extensive.
  - apply in_app_or in I as [I | I]; [eauto |]. apply in_app_or in I as [I | I].
    + eapply (Un _ _ [x]); [| exact I]. apply bound_after_extensive.
    + intros J. apply (IHp' _ _ _ I), bound_after_extensive, J.
  - eapply Un; [apply incl_refl | exact I].
  - destruct (nth_error R i); [| destruct I]. eapply Un; [apply incl_refl | exact I].
Qed.

(** *** The inferred lists are better than any that pass *)

(** With names [S] missing: what is bound, what is missing, and the check if nothing is. *)
Definition at_least (S : list name) (R : recursion) (D : list name) (p' : pattern)
    (R' : recursion) (D' : list name) (q : pattern) : Prop :=
  incl (bound_after R' D' q) (S ++ bound_after R D p') /\ incl (missing R D p') S /\
  (missing R D p' = [] -> checks R D p' = true).

Definition infers (p : pattern) : Prop := forall q R R' D D' S,
  erase p = erase q -> Forall2 better R R' -> incl D' (S ++ D) -> checks R' D' q = true ->
  at_least S R D (infer_bindings R p) R' D' q.

Lemma infers_children ps : Forall infers ps -> forall qs R R' D D' S,
  map erase ps = map erase qs -> Forall2 better R R' -> incl D' (S ++ D) ->
  thread_check (bound_after R') (checks R') D' qs = true ->
  let ps' := map (infer_bindings R) ps in
  incl (thread (bound_after R') D' qs) (S ++ thread (bound_after R) D ps') /\
  incl (missing_children R D ps') S /\
  (missing_children R D ps' = [] -> thread_check (bound_after R) (checks R) D ps' = true).
Proof.
  induction 1 as [| p ps Hp _ IH]; intros [| q qs] R R' D D' S E B L C; try discriminate; simpl.
  - repeat split; auto using incl_nil_l.
  - simpl in C. injection E as E1 E2. apply andb_prop in C as [C1 C2].
    destruct (Hp q R R' D D' S E1 B L C1) as (L1 & M1 & K1).
    destruct (IH qs R R' _ _ S E2 B L1 C2) as (L2 & M2 & K2).
    split; [exact L2 |]. split; [now apply incl_app |].
    intros Z. apply app_eq_nil in Z as [Z1 Z2]. now rewrite K1, K2.
Qed.

Lemma incl_cons_both (x : name) D' S D : incl D' (S ++ D) -> incl (x :: D') (S ++ x :: D).
Proof.
  intros L y [<- | I]; apply in_or_app; [right; now left |].
  apply L, in_app_or in I as [I | I]; [now left | right; now right].
Qed.

Lemma incl_without x D' S D : incl D' (S ++ D) -> incl (without x D') (without x S ++ without x D).
Proof.
  intros L y I. apply without_spec in I as [I N]. apply in_or_app.
  apply L, in_app_or in I as [I | I]; [left | right]; now apply without_spec.
Qed.

Lemma infers_mu xs ins0 outs0 small b ys : infers b -> infers (PMu xs ins0 outs0 small b ys).
Proof.
  intros IH q R R' D D' S E B L C. destruct q as [| | | | | | | | xs' ins' outs' small' b' ys' |];
    try discriminate. cbn [erase] in E. injection E as <- E <-. cbn [checks] in C.
  apply andb_prop in C as [C Co]. apply andb_prop in C as [Ci Cb]. apply subset_spec in Co.
  cbn [infer_bindings].
  set (inside := fun ins outs : list name => Def xs ins outs small b :: R).
  set (body := fun ins outs => infer_bindings (inside ins outs) b).
  set (d' := Def xs ins' outs' small' b').
  (* outputs that are kept *)
  set (kept := fun outs => forall x, In x outs' -> In x xs -> In x ins' \/ In x outs).
  assert (Body : forall ins outs, incl ins ins' -> kept outs ->
    at_least ins' (inside ins outs) ins (body ins outs) (d' :: R') ins' b').
  { intros ins outs Hi Ho. apply IH; auto.
    - constructor; [split; [reflexivity | split; assumption] | exact B].
    - apply incl_appl, incl_refl. }
  assert (Kept : forall ins, incl ins ins' -> kept (greatest_outs inside body xs ins)).
  { intros ins Hi. apply (shrink_invariant _ kept); [| lia |].
    - intros outs Ho x I J. destruct (Ho x I J) as [K | K]; [now left |].
      destruct (Body ins outs Hi Ho) as (Lb & _ & _).
      apply Co, Lb, in_app_or in I as [I | I]; [now left | right].
      apply inter_spec. split; [exact K | exact I].
    - intros x I J. now right. }
  (* inputs that are asked for *)
  set (ins := least_ins inside body xs). set (outs := greatest_outs inside body xs ins).
  assert (Asked : incl ins ins').
  { apply (enlarge_invariant _ (fun ins => incl ins ins')); [| intros x []].
    intros i Hi. apply incl_app; [| exact Hi]. intros x I. apply inter_spec in I as [_ I].
    now apply (Body i _ Hi (Kept i Hi)). }
  assert (Better : better (Def xs ins outs small (body ins outs)) d').
  { split; [reflexivity |]. split; [exact Asked | exact (Kept ins Asked)]. }
  assert (Nothing : missing (inside ins outs) ins (body ins outs) = []).
  { destruct (missing _ _ _) as [| x l] eqn:M; auto. exfalso.
    assert (I : In x (missing (inside ins outs) ins (body ins outs))) by (rewrite M; now left).
    apply (missing_unbound _ _ _ _ I).
    assert (J : In x ins') by now apply (Body ins outs Asked (Kept ins Asked)).
    destruct (inputs_bound_spec _ _ _ _ _ Ci J) as (y & A & _).
    apply (enlarge_closed (fun ins => let outs := greatest_outs inside body xs ins in
      inter xs (missing (inside ins outs) ins (body ins outs))) xs) with (n := length xs) (D := []).
    - intros i z Iz. now apply inter_spec in Iz.
    - apply filter_length_le.
    - apply inter_spec. split; [eapply arg_parameter; exact A | exact I]. }
  split; [| split].
  - exact (better_outs _ d' ys D D' S Better Ci L).
  - exact (better_missing _ d' ys D D' S Better Ci L).
  - intros M. set (found := Def xs ins outs small (body ins outs) :: R).
    change (inputs_bound xs ins ys D && checks found ins (body ins outs) &&
            subset outs (bound_after found ins (body ins outs)) = true).
    pose proof (better_bound _ d' ys D D' Better Ci M) as Bi. cbn [d_params d_in] in Bi.
    destruct (Body ins outs Asked (Kept ins Asked)) as (_ & _ & K).
    rewrite Bi, (checks_same_lists _ found (inside ins outs)), (K Nothing) by reflexivity.
    simpl. pose proof (greatest_outs_kept inside body xs ins) as G. cbv zeta in G. fold outs in G.
    rewrite (bound_after_similar _ (inside ins outs)) by reflexivity. exact G.
Qed.

Theorem infer_bindings_best p : infers p.
Proof.
  induction p as [x | f ps IH | F ps IH | p1 p2 IH1 IH2 | x p IH | p g IH | p x e IH
                 | p1 p2 x IH1 IH2 | xs ins outs small b ys IH | i ys] using pattern_ind';
    try (now apply infers_mu);
    intros q R R' D D' S E B L C; destruct q; try discriminate; cbn [erase] in E; cbn [checks] in C;
    cbn [infer_bindings]; unfold at_least; cbn [bound_after missing checks].
  - (* var *) injection E as <-. split; [now apply incl_cons_both |]. split; [apply incl_nil_l | auto].
  - (* op *) injection E as <- E. exact (infers_children ps IH _ _ _ _ _ _ E B L C).
  - (* fun *) injection E as <- E.
    exact (infers_children ps IH _ _ _ _ _ _ E B (incl_cons_both F _ _ _ L) C).
  - (* alt *) injection E as E1 E2. apply andb_prop in C as [C1 C2].
    destruct (IH1 _ _ _ _ _ _ E1 B L C1) as (L1 & M1 & K1).
    destruct (IH2 _ _ _ _ _ _ E2 B L C2) as (L2 & M2 & K2).
    split; [| split; [now apply incl_app |]].
    + intros y I. apply inter_spec in I as [I1 I2].
      apply L1, in_app_or in I1 as [I1 | I1]; [apply in_or_app; now left |].
      apply L2, in_app_or in I2 as [I2 | I2]; apply in_or_app; [now left | right].
      now apply inter_spec.
    + intros Z. apply app_eq_nil in Z as [Z1 Z2]. now rewrite K1, K2.
  - (* ex *) injection E as <- E. apply andb_prop in C as [C1 C2]. apply mem_spec in C2.
    destruct (IH _ _ _ _ _ _ E B (incl_without x _ _ _ L) C1) as (L1 & M1 & K1).
    assert (No : ~ In x (missing R (without x D) (infer_bindings R p))).
    { intros I. apply M1, without_spec in I as [_ N]. congruence. }
    split; [| split].
    + intros y I. apply in_app_or in I as [I | I].
      * apply L, in_app_or in I as [I | I]; apply in_or_app; [now left | right].
        apply in_or_app. now left.
      * apply without_spec in I as [I N]. apply L1, in_app_or in I as [I | I]; apply in_or_app.
        -- left. now apply without_spec in I.
        -- right. apply in_or_app. right. now apply without_spec.
    + intros y I. apply without_spec in I as [I _]. now apply M1, without_spec in I.
    + intros Z. rewrite K1.
      * apply mem_spec. apply L1, in_app_or in C2 as [I | I]; auto.
        apply without_spec in I as [_ N]. congruence.
      * destruct (missing R (without x D) (infer_bindings R p)) as [| y l]; auto. exfalso.
        assert (In y (without x (y :: l))) as I; [| rewrite Z in I; destruct I].
        apply without_spec. split; [now left |]. intros ->. apply No. now left.
  - (* guard *) injection E as E <-. apply andb_prop in C as [C1 C2]. apply subset_spec in C2.
    destruct (IH _ _ _ _ _ _ E B L C1) as (L1 & M1 & K1). split; [exact L1 |]. split.
    + apply incl_app; auto. intros y I. apply unbound_spec in I as [I N].
      apply C2, L1, in_app_or in I as [I | I]; [exact I | contradiction].
    + intros Z. apply app_eq_nil in Z as [Z1 Z2]. rewrite (K1 Z1).
      now apply subset_spec, unbound_none.
  - (* let *) injection E as E <- <-. apply andb_prop in C as [C1 C2]. apply subset_spec in C2.
    destruct (IH _ _ _ _ _ _ E B L C1) as (L1 & M1 & K1). split; [now apply incl_cons_both |]. split.
    + apply incl_app; auto. intros y I. apply unbound_spec in I as [I N].
      apply C2, L1, in_app_or in I as [I | I]; [exact I | contradiction].
    + intros Z. apply app_eq_nil in Z as [Z1 Z2]. rewrite (K1 Z1).
      now apply subset_spec, unbound_none.
  - (* match *) injection E as E1 E2 <-. apply andb_prop in C as [C C2].
    apply andb_prop in C as [C1 Cx]. apply mem_spec in Cx.
    destruct (IH1 _ _ _ _ _ _ E1 B L C1) as (L1 & M1 & K1).
    destruct (IH2 _ _ _ _ _ _ E2 B L1 C2) as (L2 & M2 & K2). split; [exact L2 |]. split.
    + apply incl_app; auto. apply incl_app; auto. intros y I.
      apply (unbound_spec y _ [x]) in I as [[<- | []] N].
      apply L1, in_app_or in Cx as [I | I]; [exact I | contradiction].
    + intros Z. apply app_eq_nil in Z as [Z1 Z2]. apply app_eq_nil in Z2 as [Zx Z2].
      rewrite (K1 Z1), (K2 Z2), andb_true_r. apply mem_spec.
      apply (unbound_none _ [x] Zx). now left.
  - (* call *) injection E as <- <-.
    assert (N : match nth_error R i, nth_error R' i with
                | Some d, Some d' => better d d' | None, None => True | _, _ => False end).
    { clear -B. revert i. induction B as [| d d' R R' H _ IHB]; intros [| i]; simpl; auto.
      apply IHB. }
    destruct (nth_error R i) as [d |], (nth_error R' i) as [d' |]; try tauto.
    + split; [now apply better_outs |]. split; [eapply better_missing; eauto |].
      intros Z. eapply better_bound; eauto.
    + split; [exact L |]. split; [apply incl_nil_l | auto].
Qed.

(** If any lists make a pattern well-formed, the inferred ones do. *)
Theorem infer_wf p q : erase p = erase q -> wf q = true -> wf (infer p) = true.
Proof.
  intros E W. unfold wf, infer. rewrite (checks_infer_small _ [] []) by reflexivity.
  destruct (infer_bindings_best p q [] [] [] [] []) as (_ & M & K); auto using incl_nil_l.
  apply K. destruct (missing [] [] (infer_bindings [] p)) as [| x l]; auto.
  destruct (M x (or_introl eq_refl)).
Qed.
End Best.
