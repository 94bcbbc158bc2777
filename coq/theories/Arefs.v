(** * Asynchronous references: rings of slots between a producer and several consumers

    The producer copies item after item into a ring of [D] slots; each of [C] consumers reads every
    item.  Copies land, and reads end, in any order and at any time.  A barrier shows the parity of
    its completed phases and nothing else, and this is all that a wait can test.  Consumers give
    back item [j] after they have got [due j] items, so that products may be in flight meanwhile.

    [pypm/tiles/partition.py] makes such programs, and [pypm/tiles/emit.py] writes them. *)

From Coq Require Import Arith Lia List Bool.
Import ListNotations.

(** ** Phases of a slot: how many of the first [n] items are its own *)

Section Phases.
Variable D : nat.
Hypothesis HD : 1 <= D.

Fixpoint phases (n s : nat) : nat :=
  match n with 0 => 0 | S n => phases n s + (if Nat.eqb (n mod D) s then 1 else 0) end.

Lemma phases_closed n s : s < D -> phases n s = (n + (D - 1 - s)) / D.
Proof.
  intros L. induction n as [| n IH]; simpl phases.
  - symmetry. apply Nat.div_small. lia.
  - rewrite IH. pose proof (Nat.div_mod n D) as E. pose proof (Nat.mod_upper_bound n D) as B.
    set (q := n / D) in *. set (m := n mod D) in *. specialize (E ltac:(lia)). specialize (B ltac:(lia)).
    assert (V : (n + (D - 1 - s)) / D = q + (if Nat.ltb s m then 1 else 0)).
    { destruct (Nat.ltb_spec s m); symmetry.
      - apply (Nat.div_unique _ _ _ (m - s - 1)); nia.
      - apply (Nat.div_unique _ _ _ (m + (D - 1 - s))); nia. }
    assert (V' : (S n + (D - 1 - s)) / D = q + (if Nat.leb s m then 1 else 0)).
    { destruct (Nat.leb_spec s m); symmetry.
      - apply (Nat.div_unique _ _ _ (m - s)); nia.
      - apply (Nat.div_unique _ _ _ (m + D - s)); nia. }
    rewrite V, V'. destruct (Nat.eqb_spec m s), (Nat.ltb_spec s m), (Nat.leb_spec s m); lia.
Qed.

(** Where a counter is at most one round behind, a slot's barrier has done all its phases, or all
    but one; *)
Lemma phases_near p f : f <= p -> p <= f + D ->
  phases f (p mod D) = p / D - (if Nat.ltb p (f + D) then 0 else 1) /\ (p = f + D -> 1 <= p / D).
Proof.
  intros L U. pose proof (Nat.div_mod p D ltac:(lia)) as E.
  pose proof (Nat.mod_upper_bound p D ltac:(lia)) as B.
  rewrite phases_closed by auto. set (q := p / D) in *. set (m := p mod D) in *.
  assert (Q : p = f + D -> 1 <= q) by nia. split; auto.
  destruct (Nat.ltb_spec p (f + D)); symmetry.
  - rewrite Nat.sub_0_r. apply (Nat.div_unique _ _ _ (f + D - 1 - p + m - m)); nia.
  - specialize (Q ltac:(lia)). apply (Nat.div_unique _ _ _ (D - 1)); nia.
Qed.

(** so its parity tells which. *)
Theorem parity p f : f <= p -> p <= f + D ->
  (Nat.odd (phases f (p mod D)) = Nat.odd (p / D) <-> p < f + D).
Proof.
  intros L U. destruct (phases_near p f L U) as [-> Q]. destruct (Nat.ltb_spec p (f + D)) as [K | K].
  - rewrite Nat.sub_0_r. tauto.
  - specialize (Q ltac:(lia)). split; [| lia]. intros O. exfalso. destruct (p / D) as [| q]; [lia |].
    replace (S q - 1) with q in O by lia. rewrite Nat.odd_succ, <- Nat.negb_odd in O.
    destruct (Nat.odd q); discriminate.
Qed.

(** Copies that have landed in a slot, of the first [n] items. *)
Fixpoint arrived (l : nat -> bool) (n s : nat) : nat :=
  match n with
  | 0 => 0
  | S n => arrived l n s + (if Nat.eqb (n mod D) s && l n then 1 else 0)
  end.

Lemma arrived_all l n s : (forall i, i < n -> l i = true) -> arrived l n s = phases n s.
Proof.
  induction n as [| n IH]; intros L; simpl; auto. rewrite IH, L, andb_true_r by auto. reflexivity.
Qed.

(** Where all before item [g] have landed, and none of the next round was started, *)
Lemma arrived_near l g n : (forall i, i < g -> l i = true) -> g < n -> n <= g + D ->
  arrived l n (g mod D) = g / D + (if l g then 1 else 0).
Proof.
  intros L G. induction n as [| n IH]; [lia | intros U]. simpl.
  destruct (Nat.eq_dec n g) as [-> | X].
  - rewrite arrived_all, Nat.eqb_refl by auto. simpl.
    destruct (phases_near g g ltac:(lia) ltac:(lia)) as [-> _].
    destruct (Nat.ltb_spec g (g + D)); lia.
  - rewrite IH by lia. destruct (Nat.eqb_spec (n mod D) (g mod D)) as [E | E]; simpl; [| lia].
    pose proof (Nat.div_mod n D ltac:(lia)) as V. pose proof (Nat.div_mod g D ltac:(lia)) as W.
    rewrite E in V. exfalso. destruct (Nat.lt_trichotomy (n / D) (g / D)) as [K | [K | K]]; nia.
Qed.

(** the parity of the slot tells whether [g] has. *)
Theorem get_parity l g n : (forall i, i < g -> l i = true) -> g < n -> n <= g + D ->
  (Nat.odd (arrived l n (g mod D)) <> Nat.odd (g / D) <-> l g = true).
Proof.
  intros L G U. rewrite arrived_near by auto. destruct (l g).
  - rewrite Nat.add_1_r, Nat.odd_succ, <- Nat.negb_odd. destruct (Nat.odd (g / D)); intuition discriminate.
  - rewrite Nat.add_0_r. intuition discriminate.
Qed.
End Phases.

(** ** The protocol *)

Section Ring.
Variables (D N C : nat) (due : nat -> nat).

Record state := State {
  put : nat;                           (* items for which a copy was started *)
  landed : nat -> bool;
  got : nat -> nat;                    (* of each consumer: items that it waited for, *)
  ended : nat -> nat -> bool;          (* items that it no longer reads, *)
  freed : nat -> nat                   (* items that it gave back *)
}.

Definition start : state := State 0 (fun _ => false) (fun _ => 0) (fun _ _ => false) (fun _ => 0).

Definition set {A} (f : nat -> A) i a : nat -> A := fun j => if Nat.eqb j i then a else f j.

(** The wait of the producer, for each consumer: a parity. *)
Definition slot_free (s : state) (c : nat) : Prop :=
  Nat.odd (phases D (freed s c) (put s mod D)) = Nat.odd (put s / D).

Inductive step : state -> state -> Prop :=
| Put s : put s < N -> (forall c, c < C -> slot_free s c) ->
    step s (State (S (put s)) (landed s) (got s) (ended s) (freed s))
| Land s i : i < put s -> landed s i = false ->
    step s (State (put s) (set (landed s) i true) (got s) (ended s) (freed s))
| Get s c : c < C -> got s c < due (freed s c) -> got s c < put s -> landed s (got s c) = true ->
    step s (State (put s) (landed s) (set (got s) c (S (got s c))) (ended s) (freed s))
| End s c i : c < C -> i < got s c -> ended s c i = false ->
    step s (State (put s) (landed s) (got s) (set (ended s) c (set (ended s c) i true)) (freed s))
| Free s c : c < C -> due (freed s c) <= got s c -> freed s c < got s c ->
    ended s c (freed s c) = true ->
    step s (State (put s) (landed s) (got s) (ended s) (set (freed s) c (S (freed s c)))).

Inductive reached : state -> Prop :=
| Start : reached start
| Then s t : reached s -> step s t -> reached t.

Record inv (s : state) : Prop := {
  i_put : put s <= N;
  i_near : forall c, c < C -> freed s c <= got s c /\ got s c <= put s /\ put s <= freed s c + D;
  i_landed : forall c i, c < C -> i < got s c -> landed s i = true;
  i_ended : forall c i, c < C -> i < freed s c -> ended s c i = true
}.

Lemma set_same {A} (f : nat -> A) i a : set f i a i = a.
Proof. unfold set. now rewrite Nat.eqb_refl. Qed.

Lemma set_other {A} (f : nat -> A) i a j : j <> i -> set f i a j = f j.
Proof. unfold set. destruct (Nat.eqb_spec j i); congruence. Qed.

Hypothesis HD : 1 <= D.

Lemma inv_step s t : step s t -> inv s -> inv t.
Proof.
  intros H [P Ne La En].
  destruct H as [s L F | s i L F | s c Lc W L F | s c i Lc L F | s c Lc W L F];
    split; simpl; auto; try lia.
  - intros c Lc. destruct (Ne c Lc) as (A & B & U). specialize (F c Lc). unfold slot_free in F.
    apply parity in F; lia.
  - intros c k Lc Lk. destruct (Nat.eq_dec k i) as [-> | X]; [apply set_same | rewrite set_other; eauto].
  - intros c' Lc'. destruct (Nat.eq_dec c' c) as [-> | X]; [rewrite set_same | rewrite set_other by auto; auto].
    destruct (Ne c Lc). lia.
  - intros c' k Lc' Lk. destruct (Nat.eq_dec c' c) as [-> | X];
      [rewrite set_same in Lk | rewrite set_other in Lk by auto; eauto].
    destruct (Nat.eq_dec k (got s c)) as [-> | Y]; auto. apply (La c); lia.
  - intros c' k Lc' Lk. destruct (Nat.eq_dec c' c) as [-> | X];
      [rewrite set_same | rewrite set_other by auto; auto].
    destruct (Nat.eq_dec k i) as [-> | Y]; [apply set_same | rewrite set_other; auto].
  - intros c' Lc'. destruct (Nat.eq_dec c' c) as [-> | X]; [rewrite set_same | rewrite set_other by auto; auto].
    destruct (Ne c Lc). lia.
  - intros c' k Lc' Lk. destruct (Nat.eq_dec c' c) as [-> | X];
      [rewrite set_same in Lk | rewrite set_other in Lk by auto; auto].
    destruct (Nat.eq_dec k (freed s c)) as [-> | Y]; auto. apply En; lia.
Qed.

Lemma reached_inv s : reached s -> inv s.
Proof. induction 1; [split; simpl; intros; lia | eauto using inv_step]. Qed.

(** Nobody overwrites what a consumer has still to read, *)
Theorem no_overwrite s t c i : reached s -> step s t -> put t = S (put s) -> c < C -> i < put s ->
  i mod D = put s mod D -> ended s c i = true.
Proof.
  intros R H E Lc Li M. apply reached_inv in R as I. apply (i_ended s I); auto.
  assert (U : put s < freed s c + D).
  { destruct (i_near s I c Lc) as (A & B & K). destruct H; simpl in E; try lia.
    specialize (H0 c Lc). unfold slot_free in H0. apply parity in H0; lia. }
  enough (i + D <= put s) by lia.
  pose proof (Nat.div_mod i D ltac:(lia)) as X. pose proof (Nat.div_mod (put s) D ltac:(lia)) as Y.
  assert (i / D < put s / D) by (rewrite M in X; nia). nia.
Qed.

(** what is read has landed, *)
Theorem reads_landed s c i : reached s -> c < C -> i < got s c -> landed s i = true.
Proof. intros R. apply (i_landed s (reached_inv s R)). Qed.

(** for the parity of its slot's barrier, which a consumer waits for, tells that, *)
Theorem get_waits s c : reached s -> c < C -> got s c < put s ->
  (Nat.odd (arrived D (landed s) (put s) (got s c mod D)) <> Nat.odd (got s c / D) <->
   landed s (got s c) = true).
Proof.
  intros R Lc G. apply reached_inv in R as I. destruct (i_near s I c Lc) as (A & B & U).
  apply get_parity; auto; [| lia]. intros i Li. eauto using i_landed.
Qed.

(** as the parities that the producer waits for tell that it may go on. *)
Theorem put_waits s c : reached s -> c < C -> (slot_free s c <-> put s < freed s c + D).
Proof.
  intros R Lc. destruct (i_near s (reached_inv s R) c Lc). apply parity; lia.
Qed.

Lemma least (f : nat -> nat) : 0 < C -> exists m, m < C /\ forall c, c < C -> f m <= f c.
Proof.
  induction C as [| n IH]; [lia | intros _]. destruct n as [| n].
  - exists 0. split; [lia |]. intros c L. now replace c with 0 by lia.
  - destruct IH as (m & Lm & Hm); [lia |]. destruct (Nat.le_gt_cases (f m) (f (S n))) as [K | K].
    + exists m. split; [lia |]. intros c L. destruct (Nat.eq_dec c (S n)) as [-> | X]; auto.
      apply Hm. lia.
    + exists (S n). split; [lia |]. intros c L. destruct (Nat.eq_dec c (S n)) as [-> | X]; auto.
      specialize (Hm c ltac:(lia)). lia.
Qed.

(** Unless all consumers have given back all items, something can happen. *)
Theorem progress s :
  (forall j, j < N -> j < due j <= N) ->      (* an item is got before it is given back, *)
  (forall j, j < N -> due j <= j + D) ->      (* and this needs no more than [D] slots *)
  reached s -> (exists c, c < C /\ freed s c < N) -> exists t, step s t.
Proof.
  intros Due Room R (c & Lc & Lf). apply reached_inv in R as I.
  destruct (least (freed s)) as (m & Lm & Hm); [lia |].
  assert (Ln : freed s m < N) by (specialize (Hm c Lc); lia).
  destruct (Due _ Ln) as [Lj Lu]. specialize (Room _ Ln). destruct (i_near s I m Lm) as (A & B & U).
  destruct (Nat.lt_ge_cases (got s m) (due (freed s m))) as [K | K].
  - destruct (Nat.lt_ge_cases (got s m) (put s)) as [G | G].
    + destruct (landed s (got s m)) eqn:E; eexists;
        [apply (Get s m) | apply (Land s (got s m))]; auto.
    + eexists. apply Put; [lia |]. intros d Ld. destruct (i_near s I d Ld) as (A' & B' & U').
      specialize (Hm d Ld). unfold slot_free. apply parity; lia.
  - destruct (ended s m (freed s m)) eqn:E; eexists;
      [apply (Free s m) | apply (End s m (freed s m))]; auto; lia.
Qed.
End Ring.

(** ** Several rings

    Rings that are filled in one order in each turn are one ring: item [r] of turn [t] has the slot and
    the phase in the ring of [R * D] slots that it has in its own. *)

Theorem several_rings R D t r : r < R -> 1 <= D ->
  (t * R + r) mod (R * D) = (t mod D) * R + r /\ (t * R + r) / (R * D) = t / D.
Proof.
  intros L H. pose proof (Nat.div_mod t D ltac:(lia)) as E.
  pose proof (Nat.mod_upper_bound t D ltac:(lia)) as B.
  set (q := t / D) in *. set (m := t mod D) in *. split; symmetry.
  - apply (Nat.mod_unique _ _ q); nia.
  - apply (Nat.div_unique _ _ _ (m * R + r)); nia.
Qed.

(** Consumers get [g] of the [R] items of a turn, give back all items of the turn [P] turns before,
    and get the rest: [P] turns in flight need [P + 1] slots. *)
Theorem in_flight R D P g k r : P < D -> g <= R -> r < R ->
  (k + P) * R + g <= k * R + r + R * D.
Proof. intros; nia. Qed.

(** ** A judge of logs *)

Inductive event := EPut | ELand (i : nat) | EGet (c : nat) | EEnd (c i : nat) | EFree (c : nat).

Section Judge.
Variables (D N C : nat) (due : nat -> nat).

Definition slot_is_free (s : state) (c : nat) : bool :=
  Bool.eqb (Nat.odd (phases D (freed s c) (put s mod D))) (Nat.odd (put s / D)).

(** The state after an event; [None] if the event is no step. *)
Definition next (s : state) (e : event) : option state :=
  match e with
  | EPut =>
      if Nat.ltb (put s) N && forallb (slot_is_free s) (seq 0 C)
      then Some (State (S (put s)) (landed s) (got s) (ended s) (freed s)) else None
  | ELand i =>
      if Nat.ltb i (put s) && negb (landed s i)
      then Some (State (put s) (set (landed s) i true) (got s) (ended s) (freed s)) else None
  | EGet c =>
      if Nat.ltb c C && Nat.ltb (got s c) (due (freed s c)) && Nat.ltb (got s c) (put s)
         && landed s (got s c)
      then Some (State (put s) (landed s) (set (got s) c (S (got s c))) (ended s) (freed s))
      else None
  | EEnd c i =>
      if Nat.ltb c C && Nat.ltb i (got s c) && negb (ended s c i)
      then Some (State (put s) (landed s) (got s)
                   (set (ended s) c (set (ended s c) i true)) (freed s)) else None
  | EFree c =>
      if Nat.ltb c C && Nat.leb (due (freed s c)) (got s c) && Nat.ltb (freed s c) (got s c)
         && ended s c (freed s c)
      then Some (State (put s) (landed s) (got s) (ended s) (set (freed s) c (S (freed s c))))
      else None
  end.

(** The number of events before the first that is no step, and the last state. *)
Fixpoint follow (s : state) (es : list event) : nat * state :=
  match es with
  | [] => (0, s)
  | e :: es => match next s e with None => (0, s) | Some t => let (n, u) := follow t es in (S n, u) end
  end.

(** A log is accepted if all its events are steps, and all items are given back at its end. *)
Definition accepted (es : list event) : bool :=
  let (n, s) := follow start es in
  Nat.eqb n (length es) && forallb (fun c => Nat.eqb (freed s c) N) (seq 0 C).

Ltac conditions := repeat match goal with
  | H : _ && _ = true |- _ => apply andb_true_iff in H; destruct H
  | H : Nat.ltb _ _ = true |- _ => apply Nat.ltb_lt in H
  | H : Nat.leb _ _ = true |- _ => apply Nat.leb_le in H
  | H : negb _ = true |- _ => apply negb_true_iff in H
  end.

Lemma next_step s e t : next s e = Some t -> step D N C due s t.
Proof.
  destruct e; simpl; intros E;
    match type of E with (if ?b then _ else _) = _ => destruct b eqn:B; [| discriminate] end;
    injection E as <-; conditions; constructor; auto.
  intros c L. unfold slot_free. apply eqb_prop.
  match goal with H : forallb _ _ = true |- _ => rewrite forallb_forall in H; apply (H c) end.
  apply in_seq. lia.
Qed.

Lemma follow_reached s es : reached D N C due s -> reached D N C due (snd (follow s es)).
Proof.
  revert s. induction es as [| e es IH]; intros s R; simpl; auto.
  destruct (next s e) as [t |] eqn:E; auto.
  specialize (IH t (Then _ _ _ _ _ _ R (next_step _ _ _ E))). now destruct (follow t es).
Qed.

Theorem accepted_path es : accepted es = true ->
  exists s, reached D N C due s /\ forall c, c < C -> freed s c = N.
Proof.
  unfold accepted. pose proof (follow_reached start es (Start _ _ _ _)) as R.
  destruct (follow start es) as [n s]. intros A. exists s. split; [exact R |]. conditions.
  intros c L. apply Nat.eqb_eq.
  match goal with H : forallb _ _ = true |- _ => rewrite forallb_forall in H; apply (H c) end.
  apply in_seq. lia.
Qed.

(** One barrier for all consumers, which completes a phase when all have arrived, has completed as
    many as the slowest consumer has arrived at: its parity tells whether all have given a slot back. *)
Theorem one_barrier s m : 1 <= D -> reached D N C due s -> m < C ->
  (forall c, c < C -> freed s m <= freed s c) ->
  (slot_free D s m <-> forall c, c < C -> slot_free D s c).
Proof.
  intros HD R Lm Least. split; [| auto]. intros F c Lc.
  apply (put_waits _ _ _ _ HD s m R Lm) in F. apply (put_waits _ _ _ _ HD s c R Lc).
  specialize (Least c Lc). lia.
Qed.
End Judge.
