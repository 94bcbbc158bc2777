(** * Inference finds the best lists: guardedness

    If a pattern is guarded with any lists, it is guarded with those that are inferred: the longest lists
    of small parameters are found, and all that the check reads is monotone in what is known of sizes. *)

From Coq Require Import List Bool PeanoNat Lia.
Import ListNotations.
From PyPM Require Import Names Values Terms Guards Patterns Declarative Guarded Inference Erasure
  BestLists.

(** ** What is known of sizes *)

(** The mode [m] says at least as much as [m']. *)
Definition at_most (m m' : mode) : Prop :=
  match m, m' with
  | Strict, _ | _, Unk | Weak, Weak => True
  | _, _ => False
  end.

(** [H] knows at least what [G] knows. *)
Definition known (G H : sizes) : Prop :=
  incl (fst G) (fst H) /\ incl (fst G ++ snd G) (fst H ++ snd H).

Lemma at_most_refl m : at_most m m.
Proof. destruct m; exact I. Qed.

Lemma at_most_under m m' : at_most m m' -> at_most (under m) (under m').
Proof. destruct m, m'; simpl; tauto. Qed.

Lemma modes_under M M' : Forall2 at_most M M' -> Forall2 at_most (map under M) (map under M').
Proof. induction 1; constructor; auto using at_most_under. Qed.

Lemma under_at_most M M' : Forall2 at_most M M' -> Forall2 at_most (map under M) M'.
Proof. induction 1 as [| m m']; constructor; auto. destruct m, m'; simpl in *; tauto. Qed.

Lemma unknown_modes (f : mode -> mode) M M' :
  Forall2 at_most M M' -> Forall2 at_most (map f M) (map (fun _ => Unk) M').
Proof. induction 1 as [| m m']; constructor; auto. now destruct (f m). Qed.

Lemma at_most_shift v v' E E' :
  at_most v v' -> Forall2 at_most E E' -> Forall2 at_most (shift v E) (shift v' E').
Proof.
  intros V F. destruct v, v'; simpl in *; try tauto;
    auto using modes_under, under_at_most, unknown_modes.
  rewrite <- (map_id E). now apply unknown_modes.
Qed.

Lemma known_refl G : known G G.
Proof. split; apply incl_refl. Qed.

Lemma known_mode G H x : known G H -> at_most (name_mode H x) (name_mode G x).
Proof.
  intros [F W]. unfold name_mode. destruct (mem x (fst H)) eqn:A; [exact I |].
  destruct (mem x (fst G)) eqn:B.
  - apply mem_spec in B. apply F, mem_spec in B. congruence.
  - destruct (mem x (snd G)) eqn:C.
    + assert (In x (fst H ++ snd H)) as J.
      { apply W, in_or_app. right. now apply mem_spec. }
      apply in_app_or in J as [J | J]; apply mem_spec in J; [congruence | now rewrite J].
    + now destruct (mem x (snd H)).
Qed.

Lemma known_record m m' l l' G H :
  at_most m m' -> incl l l' -> known G H -> known (record_sizes m' l G) (record_sizes m l' H).
Proof.
  intros M L [F W]. assert (forall x, In x (fst G) -> In x (fst H)) as F' by exact F.
  assert (forall x, In x (fst G) \/ In x (snd G) -> In x (fst H) \/ In x (snd H)) as W'.
  { intros x J. apply in_app_or, W, in_or_app, J. }
  assert (forall x, In x l -> In x l') as L' by exact L.
  destruct m, m'; simpl in M; try tauto; split; intros x J; simpl in *;
    rewrite ?in_app_iff in *; specialize (F' x); specialize (W' x); specialize (L' x); tauto.
Qed.

Lemma known_forget x G H : known G H -> known (forget x G) (forget x H).
Proof.
  intros [F W]. unfold forget. split; intros y J; simpl in *.
  - apply without_spec in J as [J N]. apply without_spec. auto.
  - assert (K : In y (fst H ++ snd H)).
    { apply W, in_or_app. apply in_app_or in J as [J | J]; apply without_spec in J as [J _]; auto. }
    assert (N : y <> x) by (apply in_app_or in J as [J | J]; now apply without_spec in J).
    apply in_or_app. apply in_app_or in K as [K | K]; [left | right]; now apply without_spec.
Qed.

Lemma known_meet G1 G2 H1 H2 : known G1 H1 -> known G2 H2 -> known (meet G1 G2) (meet H1 H2).
Proof.
  intros [F1 W1] [F2 W2]. unfold meet. split; intros y J; simpl in *.
  - apply inter_spec in J as [J1 J2]. apply inter_spec. auto.
  - assert (In y (fst H1 ++ snd H1) /\ In y (fst H2 ++ snd H2)) as [K1 K2].
    { apply in_app_or in J as [J | J]; apply inter_spec in J as [J1 J2]; [| now split; auto].
      split; [apply W1 | apply W2]; apply in_or_app; now left. }
    apply in_or_app. right. now apply inter_spec.
Qed.

Section Best.
Context {Δ : Domain}.

(** The definition [d] leaves bound to small terms what [d'] does. *)
Definition smaller (d d' : definition) : Prop :=
  d_params d = d_params d' /\
  forall x, In x (d_small d') -> In x (d_params d) -> In x (d_small d).

Lemma smaller_arguments d d' ys :
  smaller d d' ->
  incl (arguments (d_params d') (d_small d') ys) (arguments (d_params d) (d_small d) ys).
Proof.
  intros [E H] y J. apply arguments_spec in J as (x & J & A). apply arguments_spec. exists x.
  rewrite <- E in A. split; [| exact A]. apply H; [exact J | eapply arg_parameter, A].
Qed.

(** The check reads only the lists of a context. *)
Lemma descends_similar p : forall R R' m M E G,
  similar R R' -> descends R m M E G p = descends R' m M E G p.
Proof.
  assert (All : forall R R' m M E ps, similar R R' ->
    Forall (fun p => forall R R' m M E G,
      similar R R' -> descends R m M E G p = descends R' m M E G p) ps ->
    forall G, thread_check (sizes_after R m) (descends R m M E) G ps =
      thread_check (sizes_after R' m) (descends R' m M E) G ps).
  { intros R R' m M E ps S. induction 1 as [| q ps Hq _ IH]; intros G; simpl; auto.
    now rewrite (Hq R R'), (sizes_after_similar R R' q S), IH. }
  induction p as [x | f ps IH | F ps IH | p q IHp IHq | x p IH | p g IH | p x e IH
                 | p p' x IHp IHp' | xs ins outs small b ys IH | i ys] using pattern_ind';
    intros R R' m M E G S; simpl; auto.
  - now rewrite (IHp R R'), (IHq R R').
  - now rewrite (sizes_after_similar R R' p S), (IHp R R'), (IHp' R R').
  - assert (S' := similar_cons xs ins ins outs small b b R R' S).
    unfold small_ok. now rewrite (IH _ _ _ _ _ _ S'), (sizes_after_similar _ _ b S').
Qed.

(** Where the check passes, it passes with the inferred lists, and as much is known. *)
Definition keeps_sizes (p : pattern) : Prop := forall q R R' m m' M M' E E' G G',
  erase p = erase q -> Forall2 smaller R R' -> at_most m m' ->
  Forall2 at_most M M' -> Forall2 at_most E E' -> known G' G ->
  descends R' m' M' E' G' q = true ->
  known (sizes_after R' m' G' q) (sizes_after R m G (infer_small R p)) /\
  descends R m M E G (infer_small R p) = true.

Lemma keeps_children ps : Forall keeps_sizes ps -> forall qs R R' m m' M M' E E' G G',
  map erase ps = map erase qs -> Forall2 smaller R R' -> at_most m m' ->
  Forall2 at_most M M' -> Forall2 at_most E E' -> known G' G ->
  thread_check (sizes_after R' m') (descends R' m' M' E') G' qs = true ->
  let ps' := map (infer_small R) ps in
  known (thread (sizes_after R' m') G' qs) (thread (sizes_after R m) G ps') /\
  thread_check (sizes_after R m) (descends R m M E) G ps' = true.
Proof.
  induction 1 as [| p ps Hp _ IH]; intros [| q qs] R R' m m' M M' E E' G G' Eq B Lm LM LE K C;
    try discriminate; simpl; auto.
  simpl in C. injection Eq as E1 E2. apply andb_prop in C as [C1 C2].
  destruct (Hp q R R' m m' M M' E E' G G') as [K1 D1]; auto.
  destruct (IH qs R R' m m' M M' E E' _ _ E2 B Lm LM LE K1 C2) as [K2 D2].
  rewrite D1. auto.
Qed.

Lemma keeps_mu xs ins outs small0 b ys :
  keeps_sizes b -> keeps_sizes (PMu xs ins outs small0 b ys).
Proof.
  intros IH q R R' m m' M M' E E' G G' Eq B Lm LM LE K C.
  destruct q as [| | | | | | | | xs' ins' outs' small' b' ys' |]; try discriminate.
  cbn [erase] in Eq. injection Eq as <- Eq <-. cbn [descends] in C. apply andb_prop in C as [C Cs].
  unfold small_ok in Cs. apply subset_spec in Cs. cbn [infer_small].
  set (inside := fun small : list name => Def xs ins outs small b :: R).
  set (body := fun small => infer_small (inside small) b).
  set (d' := Def xs ins' outs' small' b').
  set (kept := fun small => forall x, In x small' -> In x xs -> In x small).
  assert (Body : forall small, kept small ->
    known (sizes_after (d' :: R') Weak no_sizes b')
      (sizes_after (inside small) Weak no_sizes (body small)) /\
    descends (inside small) Weak (m :: M) (m :: M) no_sizes (body small) = true).
  { intros small Ks. apply (IH b' _ (d' :: R') Weak Weak (m :: M) (m' :: M') (m :: M) (m' :: M'));
      auto using known_refl; [| exact I].
    constructor; [split; [reflexivity | exact Ks] | exact B]. }
  set (small := greatest_small inside body xs).
  assert (Kept : kept small).
  { apply (shrink_invariant _ kept); [| lia | intros x J J'; exact J'].
    intros D Ks x J J'. apply inter_spec. split; [now apply Ks |].
    destruct (Body D Ks) as [[_ W] _]. apply W. now apply Cs. }
  assert (S : smaller (Def xs ins outs small (body small)) d') by now split.
  split.
  - cbn [sizes_after]. apply known_record; auto. exact (smaller_arguments _ _ ys S).
  - set (found := Def xs ins outs small (body small) :: R).
    change (descends found Weak (m :: M) (m :: M) no_sizes (body small) &&
            small_ok found small (body small) = true).
    rewrite (descends_similar _ found (inside small)), (proj2 (Body small Kept)) by reflexivity.
    unfold small_ok. rewrite (sizes_after_similar found (inside small)) by reflexivity.
    exact (greatest_small_kept inside body xs).
Qed.

Theorem infer_small_keeps p : keeps_sizes p.
Proof.
  induction p as [x | f ps IH | F ps IH | p1 p2 IH1 IH2 | x p IH | p g IH | p x e IH
                 | p1 p2 x IH1 IH2 | xs ins outs small b ys IH | i ys] using pattern_ind';
    try (now apply keeps_mu);
    intros q R R' m m' M M' E E' G G' Eq B Lm LM LE K C; destruct q; try discriminate;
    cbn [erase] in Eq; cbn [descends] in C; cbn [infer_small sizes_after descends].
  - (* var *) injection Eq as <-. auto using known_record, incl_refl.
  - (* op *) injection Eq as <- Eq.
    eapply keeps_children; eauto using at_most_under, modes_under.
  - (* fun *) injection Eq as <- Eq.
    eapply keeps_children; eauto using at_most_under, modes_under.
  - (* alt *) injection Eq as E1 E2. apply andb_prop in C as [C1 C2].
    destruct (IH1 _ R R' m m' M M' E E' G G' E1) as [K1 D1]; auto.
    destruct (IH2 _ R R' m m' M M' E E' G G' E2) as [K2 D2]; auto.
    rewrite D1. auto using known_meet.
  - (* ex *) injection Eq as <- Eq.
    destruct (IH _ R R' m m' M M' E E' _ _ Eq B Lm LM LE (known_forget x _ _ K) C) as [K1 D1].
    auto using known_forget.
  - (* guard *) injection Eq as Eq <-. eauto.
  - (* let *) injection Eq as Eq <- <-.
    destruct (IH _ R R' m m' M M' E E' G G' Eq) as [K1 D1]; auto. split; [| exact D1].
    destruct e; auto. apply known_record; auto using known_mode, incl_refl.
  - (* match *) injection Eq as E1 E2 <-. apply andb_prop in C as [C1 C2].
    destruct (IH1 _ R R' m m' M M' E E' G G' E1) as [K1 D1]; auto.
    set (H := sizes_after R m G (infer_small R p1)) in *. set (H' := sizes_after R' m' G' q1) in *.
    destruct (IH2 _ R R' (name_mode H x) (name_mode H' x) (shift (name_mode H x) E)
      (shift (name_mode H' x) E') E E' H H' E2)
      as [K2 D2]; auto using known_mode, at_most_shift.
    rewrite D1. auto.
  - (* call *) injection Eq as <- <-. split.
    + assert (N : match nth_error R i, nth_error R' i with
                  | Some d, Some d' => smaller d d' | None, None => True | _, _ => False end).
      { clear -B. revert i. induction B as [| d d' R R' H _ IHB]; intros [| i]; simpl; auto.
        apply IHB. }
      destruct (nth_error R i), (nth_error R' i); try tauto.
      apply known_record; auto using smaller_arguments.
    + assert (N : Forall2 at_most (m :: M) (m' :: M')) by now constructor.
      clear -N C. revert i C. induction N as [| a a' l l' H _ IHN]; intros [| i] C; simpl in *;
        try discriminate; [| now apply IHN].
      destruct a'; try discriminate. now destruct a.
Qed.

(** If any lists make a pattern guarded, the inferred ones do. *)
Theorem infer_guarded p q : erase p = erase q -> guarded q = true -> guarded (infer p) = true.
Proof.
  intros E C. unfold guarded, infer.
  apply (infer_small_keeps (infer_bindings [] p) q [] [] Weak Weak [] [] [] [] no_sizes no_sizes);
    auto using known_refl; try exact I.
  now rewrite erase_infer_bindings.
Qed.
End Best.
