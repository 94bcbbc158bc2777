(** * Event graphs: any acyclic graph of tasks, any number of workers, queues in one linear order

    A worker takes the next task of a queue, waits until the events of the task have counted all their
    arrivals, runs it, and notifies its events one by one.  Each queue is sorted by one linear order,
    the rank, in which each task comes after those that notify what it waits for.  One queue for all
    workers is tickets; a queue for each is a schedule that was made before.

    A worker that has entered takes from its own queue.  It helps with others: while it waits for a task,
    with those that come before that task, and once its own queue is empty, with any.  So workers hold
    stacks of tasks, and threads that never enter do not matter.

    With any interleaving: a task starts when all that it reads is written; and once a worker has
    entered, something can happen until all is done, though nobody takes from the queue of another.
    A run has no more steps than an entry for each worker, four for each task and one for each note.

    [pypm/events/workers.h] runs tables so, and [pypm/events/checks.py] checks that counts are those of
    [count] and that the order is one. *)

From Coq Require Import List Bool Arith Lia Sorting.
Import ListNotations.

Definition put {A} (f : nat -> A) i a : nat -> A := fun j => if Nat.eqb j i then a else f j.

Lemma put_same {A} (f : nat -> A) i a : put f i a i = a.
Proof. unfold put. now rewrite Nat.eqb_refl. Qed.
Lemma put_other {A} (f : nat -> A) i a j : j <> i -> put f i a j = f j.
Proof. unfold put. destruct (Nat.eqb_spec j i); congruence. Qed.
Lemma put_true f i j : put f i true j = true <-> j = i \/ f j = true.
Proof. unfold put. destruct (Nat.eqb_spec j i); intuition congruence. Qed.

(** The first [n] calls of an event with [c] arrivals each, and [a] of the next one: events count on. *)
Theorem counts_on n c a : a <= c -> (S n * c <= n * c + a <-> a = c).
Proof. nia. Qed.

Section Events.
Variables (N W : nat).
Variables (waits notes : nat -> list nat).   (* of a task: events *)
Variables (queue : nat -> list nat).         (* tasks *)
Variables (rank : nat -> nat).               (* of a task: the linear order *)

Record plan : Prop := {
  p_order : forall i j e, i < N -> j < N -> In e (waits i) -> In e (notes j) -> rank j < rank i;
  p_linear : forall i j, i < N -> j < N -> rank i = rank j -> i = j;
  p_sorted : forall q a b i j, nth_error (queue q) a = Some i -> nth_error (queue q) b = Some j ->
    a < b -> rank i < rank j;
  p_tasks : forall q a i, nth_error (queue q) a = Some i -> i < N;
  p_once : forall q r a b i, nth_error (queue q) a = Some i -> nth_error (queue r) b = Some i -> q = r;
  p_all : forall i, i < N -> exists q a, nth_error (queue q) a = Some i
}.

Record state := State {
  owns : nat -> option nat;                (** of a worker that has entered: its queue *)
  place : nat -> nat;                      (** of a queue: how many tasks are taken *)
  holds : nat -> list nat;                 (** of a worker: tasks, the last that it took first *)
  taken : nat -> bool;
  started : nat -> bool;
  finished : nat -> bool;
  told : nat -> nat -> bool;               (** of a task: events that it has notified *)
  left : nat -> bool                       (** the worker is done with the task *)
}.
Definition start : state :=
  let no := fun _ : nat => false in
  State (fun _ => None) (fun _ => 0) (fun _ => []) no no no (fun _ => no) no.

(** What an event counts, and what a wait compares it with. *)
Definition arrived (s : state) (e : nat) : nat := length (filter (fun j => told s j e) (seq 0 N)).
Definition count (e : nat) : nat := length (filter (fun j => existsb (Nat.eqb e) (notes j)) (seq 0 N)).
Definition ready (s : state) (i : nat) : bool := forallb (fun e => Nat.eqb (arrived s e) (count e)) (waits i).

(** A worker may take the next task of a queue: of its own; of any, if its own is empty; and while it
    waits for a task, of any, if it comes before that task. *)
Definition may_take (s : state) (w q i : nat) : Prop :=
  exists o, owns s w = Some o /\
  match holds s w with
  | [] => q = o \/ length (queue o) <= place s o
  | m :: _ => started s m = false /\ rank i < rank m
  end.

Inductive event :=
| Enter (w q : nat) | Take (w q i : nat) | Begin (w i : nat) | Finish (w i : nat) | Notify (w i e : nat) | Leave (w i : nat).

Inductive step : state -> event -> state -> Prop :=
| S_enter s w q : w < W -> owns s w = None ->
    step s (Enter w q) (State (put (owns s) w (Some q)) (place s) (holds s) (taken s) (started s) (finished s) (told s) (left s))
| S_take s w q i : w < W -> nth_error (queue q) (place s q) = Some i -> may_take s w q i ->
    step s (Take w q i) (State (owns s) (put (place s) q (S (place s q))) (put (holds s) w (i :: holds s w))
      (put (taken s) i true) (started s) (finished s) (told s) (left s))
| S_begin s w i l : holds s w = i :: l -> started s i = false -> ready s i = true ->
    step s (Begin w i) (State (owns s) (place s) (holds s) (taken s) (put (started s) i true) (finished s) (told s) (left s))
| S_finish s w i l : holds s w = i :: l -> started s i = true -> finished s i = false ->
    step s (Finish w i) (State (owns s) (place s) (holds s) (taken s) (started s) (put (finished s) i true) (told s) (left s))
| S_notify s w i l e : holds s w = i :: l -> finished s i = true -> In e (notes i) -> told s i e = false ->
    step s (Notify w i e) (State (owns s) (place s) (holds s) (taken s) (started s) (finished s)
      (put (told s) i (put (told s i) e true)) (left s))
| S_leave s w i l : holds s w = i :: l -> finished s i = true -> (forall e, In e (notes i) -> told s i e = true) ->
    step s (Leave w i) (State (owns s) (place s) (put (holds s) w l) (taken s) (started s) (finished s) (told s) (put (left s) i true)).

Definition before (s : state) (m x : nat) : Prop := rank m < rank x /\ started s x = false.

Record inv (s : state) : Prop := {
  i_held : forall w i, In i (holds s w) -> taken s i = true /\ left s i = false;
  i_own : forall w v i, In i (holds s w) -> In i (holds s v) -> w = v;
  i_taken : forall i, taken s i = true -> left s i = true \/ exists w, In i (holds s w);
  i_place : forall i, taken s i = true <-> exists q a, nth_error (queue q) a = Some i /\ a < place s q;
  i_started : forall i, started s i = true -> taken s i = true /\
    forall e j, In e (waits i) -> j < N -> In e (notes j) -> told s j e = true;
  i_finished : forall i, finished s i = true -> started s i = true;
  i_told : forall i e, told s i e = true -> finished s i = true /\ In e (notes i);
  i_left : forall i, left s i = true -> finished s i = true /\ forall e, In e (notes i) -> told s i e = true;
  i_nested : forall w, StronglySorted (before s) (holds s w);
  i_base : forall w l b, holds s w = l ++ [b] -> exists o, owns s w = Some o /\
    (length (queue o) <= place s o \/ exists a, nth_error (queue o) a = Some b /\ a < place s o)
}.

Lemma filter_length_le {A} (f : A -> bool) l : length (filter f l) <= length l.
Proof. induction l as [| a l IH]; simpl; auto. destruct (f a); simpl; lia. Qed.

Lemma filter_le {A} (f g : A -> bool) l : (forall x, In x l -> f x = true -> g x = true) ->
  length (filter f l) <= length (filter g l).
Proof.
  induction l as [| a l IH]; simpl; intros H; auto.
  specialize (IH (fun x I => H x (or_intror I))). specialize (H a (or_introl eq_refl)).
  destruct (f a); [rewrite H by auto |]; simpl; [| destruct (g a); simpl]; lia.
Qed.

Lemma filter_all {A} (f g : A -> bool) l : (forall x, In x l -> f x = true -> g x = true) ->
  length (filter f l) = length (filter g l) <-> (forall x, In x l -> g x = true -> f x = true).
Proof.
  induction l as [| a l IH]; simpl; intros H; [split; auto; intros _ x [] |].
  assert (H' : forall x, In x l -> f x = true -> g x = true) by auto.
  pose proof (filter_le f g l H') as L. specialize (IH H'). specialize (H a (or_introl eq_refl)).
  destruct (f a) eqn:F; [rewrite H by auto |]; simpl.
  - split; [intros [= E] x [<- | I]; auto; now apply IH | intros K; f_equal; apply IH; auto].
  - destruct (g a) eqn:G; simpl.
    + split; [lia | intros K; rewrite (K a) in F by auto; discriminate].
    + rewrite IH. split; [intros K x [<- | I]; auto; congruence | auto].
Qed.

Lemma noted e j : existsb (Nat.eqb e) (notes j) = true <-> In e (notes j).
Proof.
  rewrite existsb_exists. split; [intros (x & I & E) | intros I; exists e; split; auto using Nat.eqb_refl].
  apply Nat.eqb_eq in E. now subst.
Qed.

Lemma ready_all s i : (forall j e, told s j e = true -> In e (notes j)) ->
  ready s i = true <-> forall e j, In e (waits i) -> j < N -> In e (notes j) -> told s j e = true.
Proof.
  intros T. unfold ready. rewrite forallb_forall.
  assert (X : forall e, arrived s e = count e <-> forall j, j < N -> In e (notes j) -> told s j e = true).
  { intros e. unfold arrived, count. rewrite filter_all by (intros j _ K; apply noted; auto).
    split; intros H j; [intros L I; apply H; [apply in_seq; lia | now apply noted] |].
    intros I%in_seq E%noted. apply H; auto. lia. }
  split.
  - intros H e j I L K. apply (proj1 (X e)); auto. apply Nat.eqb_eq, H, I.
  - intros H e I. apply Nat.eqb_eq, X. eauto.
Qed.

Hypothesis P : plan.

Lemma inv_start : inv start.
Proof.
  split; simpl; try discriminate; try tauto; try (intros; constructor).
  - intros H. discriminate.
  - intros (q & a & _ & L). lia.
  - intros w l b E. destruct l; discriminate.
Qed.

Lemma next_untaken s q i : inv s -> nth_error (queue q) (place s q) = Some i -> taken s i = false.
Proof.
  intros I E. destruct (taken s i) eqn:T; auto. apply (i_place s I) in T as (r & a & E' & L).
  assert (r = q) by (eapply p_once; eauto). subst. pose proof (p_sorted P _ _ _ _ _ E' E L). lia.
Qed.

Lemma sorted_in s w i l : inv s -> holds s w = i :: l -> ~ In i l.
Proof.
  intros I E K. pose proof (i_nested s I w) as O. rewrite E in O. apply StronglySorted_inv in O as [_ O].
  rewrite Forall_forall in O. destruct (O i K). lia.
Qed.

Lemma sorted_weaken (R S : nat -> nat -> Prop) l :
  (forall x y, In x l -> In y l -> R x y -> S x y) -> StronglySorted R l -> StronglySorted S l.
Proof.
  induction l as [| a l IH]; intros H O; constructor; apply StronglySorted_inv in O as [O F].
  - apply IH; auto. intros. apply H; simpl; auto.
  - rewrite Forall_forall in *. intros x X. apply H; simpl; auto.
Qed.

Lemma inv_step s e t : step s e t -> inv s -> inv t.
Proof.
  intros H I. pose proof I as [He Ow Ta Pl St Fi To Le Ne Ba].
  destruct H as [s w q L E | s w q i L E M | s w i l E S R | s w i l E S F | s w i l e E F K T | s w i l E F A].
  - split; simpl; auto. intros v l b Q. destruct (Ba _ _ _ Q) as (o & O & B). exists o. split; auto.
    rewrite put_other; auto. congruence.
  - pose proof (next_untaken s q i I E) as U.
    assert (X : forall v k, In k (put (holds s) w (i :: holds s w) v) -> v = w /\ k = i \/ In k (holds s v) /\ k <> i).
    { intros v k. unfold put. assert (Y : In k (holds s v) -> k <> i) by (intros J ->; apply He in J as [J _]; congruence).
      destruct (Nat.eqb_spec v w) as [-> | D]; simpl; [intros [-> | J] | intros J]; auto. }
    split; simpl; auto.
    + intros v k [[-> ->] | [J D]]%X; [rewrite put_same | rewrite put_other by auto; now apply (He v)]. split; auto.
      destruct (left s i) eqn:G; auto. apply Le in G as [G _]. apply Fi, St in G as [G _]. congruence.
    + intros v v' k [[-> ->] | [J D]]%X [[-> D'] | [J' D']]%X; try congruence. eauto.
    + intros k [-> | G]%put_true; [right; exists w; rewrite put_same; now left |].
      destruct (Ta k G) as [| [v J]]; auto. right. exists v. unfold put.
      destruct (Nat.eqb_spec v w) as [-> |]; simpl; auto.
    + intros k. rewrite put_true, Pl. unfold put. split.
      * intros [-> | (r & a & G & B)]; [exists q, (place s q); rewrite Nat.eqb_refl; split; auto; lia |].
        exists r, a. split; auto. destruct (Nat.eqb_spec r q); subst; lia.
      * intros (r & a & G & B). destruct (Nat.eqb_spec r q) as [-> |]; [| right; eauto].
        destruct (Nat.eq_dec a (place s q)) as [-> |]; [left; congruence | right; exists q, a; split; auto; lia].
    + intros k G. apply St in G as [G B]. split; auto. apply put_true. auto.
    + intros v. unfold put. destruct (Nat.eqb_spec v w) as [-> |]; [| apply Ne]. constructor; [apply Ne |].
      destruct M as (o & O & M). destruct (holds s w) as [| m l] eqn:Q; constructor.
      * destruct M. split; auto.
      * pose proof (Ne w) as Z. rewrite Q in Z. apply StronglySorted_inv in Z as [_ Z]. rewrite Forall_forall in *.
        intros x J. destruct (Z x J). destruct M. split; auto. lia.
    + assert (B : forall o b, length (queue o) <= place s o \/ (exists a, nth_error (queue o) a = Some b /\ a < place s o) ->
        length (queue o) <= put (place s) q (S (place s q)) o \/
        (exists a, nth_error (queue o) a = Some b /\ a < put (place s) q (S (place s q)) o)).
      { intros o b. unfold put. destruct (Nat.eqb_spec o q) as [-> |]; auto.
        intros [D | (a & D & G)]; [left; lia | right; exists a; split; auto; lia]. }
      intros v l b. unfold put at 1. destruct (Nat.eqb_spec v w) as [-> |].
      * intros Q. destruct l as [| i' l]; simpl in Q.
        -- injection Q as <- Q. destruct M as (o & O & M). exists o. split; auto. rewrite Q in M.
           destruct M as [-> | M]; [right | left].
           ++ exists (place s o). rewrite put_same. split; auto.
           ++ unfold put. destruct (Nat.eqb_spec o q); subst; lia.
        -- injection Q as <- Q. destruct (Ba _ _ _ Q) as (o & O & D). eauto.
      * intros Q. destruct (Ba _ _ _ Q) as (o & O & D). eauto.
  - assert (T : taken s i = true) by (apply (He w); rewrite E; now left).
    split; simpl; auto.
    + intros k [-> | G]%put_true; auto. split; auto. apply ready_all; auto. intros. now apply (To j).
    + intros k G%Fi. apply put_true. auto.
    + intros v. apply (sorted_weaken (before s)); auto. intros x y X Y [B C]. split; auto. simpl.
      rewrite put_other; auto. intros ->. destruct (Nat.eq_dec v w) as [-> |].
      * rewrite E in X, Y. pose proof (Ne w) as Z. rewrite E in Z. apply StronglySorted_inv in Z as [_ Z].
        rewrite Forall_forall in Z. destruct X as [<- | X]; [lia |]. destruct (Z _ X). lia.
      * apply n. apply (Ow v w i); auto. rewrite E. now left.
  - split; simpl; auto.
    + intros k [-> | G]%put_true; auto.
    + intros k e G%To. split; [apply put_true |]; tauto.
    + intros k G%Le. split; [apply put_true |]; tauto.
  - assert (X : forall k x, put (told s) i (put (told s i) e true) k x = true <-> k = i /\ x = e \/ told s k x = true).
    { intros k x. unfold put at 1. destruct (Nat.eqb_spec k i) as [-> |]; [rewrite put_true |]; intuition. }
    split; simpl; auto.
    + intros k G. apply St in G as [G B]. split; auto. intros. apply X. eauto.
    + intros k x [[-> ->] | G]%X; auto.
    + intros k G. apply Le in G as [G B]. split; auto. intros. apply X. auto.
  - assert (J : In i (holds s w)) by (rewrite E; now left).
    assert (X : forall v k, In k (put (holds s) w l v) -> In k (holds s v) /\ k <> i).
    { intros v k. unfold put. destruct (Nat.eqb_spec v w) as [-> | D]; intros K.
      - rewrite E. split; [now right |]. intros ->. eapply sorted_in; eauto.
      - split; auto. intros ->. apply D. eauto. }
    split; simpl; auto.
    + intros v k [K D]%X. rewrite put_other by auto. now apply (He v).
    + intros v v' k [K D]%X [K' _]%X. eauto.
    + intros k G. destruct (Nat.eq_dec k i) as [-> | D]; [left; apply put_same |]. rewrite put_other by auto.
      destruct (Ta k G) as [| [v K]]; auto. right. exists v. unfold put. destruct (Nat.eqb_spec v w) as [-> |]; auto.
      rewrite E in K. destruct K; [congruence | auto].
    + intros k [-> | G]%put_true; auto.
    + intros v. unfold put. destruct (Nat.eqb_spec v w) as [-> |]; [| apply Ne]. pose proof (Ne w) as Z.
      rewrite E in Z. apply StronglySorted_inv in Z as [Z _]. exact Z.
    + intros v k b. unfold put. destruct (Nat.eqb_spec v w) as [-> |]; [intros -> | apply Ba].
      apply (Ba w (i :: k)). exact E.
Qed.

Inductive run : list event -> state -> Prop :=
| R_start : run [] start
| R_step es s e t : run es s -> step s e t -> run (es ++ [e]) t.

Lemma run_inv es s : run es s -> inv s.
Proof. induction 1; [apply inv_start | eapply inv_step; eauto]. Qed.

(** No early read: when a task starts, all that notify what it waits for have run. *)
Theorem no_early_read es s x t i j e : run es s -> step s x t -> started s i = false -> started t i = true ->
  In e (waits i) -> j < N -> In e (notes j) -> finished s j = true.
Proof.
  intros R H F T I L K. apply run_inv in R. apply (i_told s R j e).
  destruct H; simpl in *; try congruence. unfold put in T. destruct (Nat.eqb_spec i i0) as [-> |]; [| congruence].
  apply (ready_all s i0); auto. intros. now apply (i_told s R).
Qed.

(** Nobody else owns the queue: a worker that takes the next task gets it from its own, or from one
    that no worker has. *)
Definition fair (s : state) (x : event) : Prop :=
  match x with
  | Enter _ _ => False
  | Take w q _ => owns s w = Some q \/ forall v, v < W -> owns s v <> Some q
  | _ => True
  end.

(** Of the tasks that are not done there is a first. *)
Lemma first_open s i : i < N -> left s i = false ->
  exists k, k < N /\ left s k = false /\ forall j, j < N -> rank j < rank k -> left s j = true.
Proof.
  remember (rank i) as r eqn:E. revert i E. induction r as [r IH] using lt_wf_ind. intros i -> L F.
  destruct (forallb (fun j => left s j || Nat.leb (rank i) (rank j)) (seq 0 N)) eqn:A.
  - exists i. repeat split; auto. intros j Lj Lr. rewrite forallb_forall in A.
    specialize (A j ltac:(apply in_seq; lia)). apply orb_true_iff in A as [A | A]; auto.
    apply Nat.leb_le in A. lia.
  - assert (X : existsb (fun j => negb (left s j || Nat.leb (rank i) (rank j))) (seq 0 N) = true).
    { rewrite <- not_false_iff_true. intros B. rewrite <- not_true_iff_false in A. apply A.
      apply forallb_forall. intros j J. destruct (left s j || Nat.leb (rank i) (rank j)) eqn:C; auto.
      rewrite <- not_true_iff_false in B. exfalso. apply B, existsb_exists. exists j. now rewrite C. }
    apply existsb_exists in X as (j & J & X). apply negb_true_iff, orb_false_iff in X as [X Y].
    apply in_seq in J. apply Nat.leb_gt in Y. apply (IH (rank j)) with (i := j); auto; lia.
Qed.

(** A task at hand goes on, if it has begun or may begin. *)
Lemma goes_on s w i l : holds s w = i :: l -> started s i = true \/ ready s i = true ->
  exists x t, step s x t /\ fair s x.
Proof.
  intros H D. destruct (started s i) eqn:S.
  2: { destruct D as [D | D]; [discriminate |]. exists (Begin w i). eexists. split; [eapply S_begin; eauto | exact I]. }
  destruct (finished s i) eqn:F.
  2: { exists (Finish w i). eexists. split; [eapply S_finish; eauto | exact I]. }
  destruct (forallb (told s i) (notes i)) eqn:A.
  - exists (Leave w i). eexists. split; [| exact I]. eapply S_leave; eauto. now apply forallb_forall.
  - assert (X : exists e, In e (notes i) /\ told s i e = false).
    { clear - A. induction (notes i) as [| e l IH]; [discriminate |]. simpl in A.
      destruct (told s i e) eqn:B; [| exists e; simpl; auto]. destruct (IH A) as (x & X & Y). exists x. simpl. auto. }
    destruct X as (e & K & T). exists (Notify w i e). eexists. split; [eapply S_notify; eauto | exact I].
Qed.

Lemma owner_dec s q : (exists v, v < W /\ owns s v = Some q) \/ (forall v, v < W -> owns s v <> Some q).
Proof.
  induction W as [| n [(v & L & E) | IH]].
  - right. lia.
  - left. exists v. split; auto.
  - destruct (owns s n) as [r |] eqn:E; [destruct (Nat.eq_dec r q) as [-> | D] |].
    + left. exists n. auto.
    + right. intros v L. destruct (Nat.eq_dec v n) as [-> | ]; [congruence | apply IH; lia].
    + right. intros v L. destruct (Nat.eq_dec v n) as [-> | ]; [congruence | apply IH; lia].
Qed.

Lemma takes s w q i : w < W -> nth_error (queue q) (place s q) = Some i -> may_take s w q i ->
  owns s w = Some q \/ (forall v, v < W -> owns s v <> Some q) -> exists x t, step s x t /\ fair s x.
Proof. intros. exists (Take w q i). eexists. split; [now apply S_take | auto]. Qed.

Lemma waits_or_goes s w k m l : inv s -> k < N -> (forall j, j < N -> rank j < rank k -> left s j = true) ->
  holds s w = m :: l -> (exists x t, step s x t /\ fair s x) \/ started s m = false /\ rank k <= rank m.
Proof.
  intros I L First H. destruct (started s m) eqn:S; [left; eapply goes_on; eauto | right]. split; auto.
  destruct (Nat.le_gt_cases (rank k) (rank m)) as [| G]; auto.
  assert (J : In m (holds s w)) by (rewrite H; now left). destruct (i_held s I w m J) as [T F].
  apply (i_place s I) in T as (q & a & E & _). rewrite First in F; [discriminate | eapply p_tasks; eauto | auto].
Qed.

Theorem progress es s : run es s -> (exists w q, w < W /\ owns s w = Some q) ->
  (exists i, i < N /\ left s i = false) -> exists x t, step s x t /\ fair s x.
Proof.
  intros R (w0 & o & W0 & O) (i & Li & F). apply run_inv in R as I.
  destruct (first_open s i Li F) as (k & Lk & Fk & First).
  destruct (taken s k) eqn:T.
  - (* the first task is held: it is the last that its worker took, and what it waits for is done *)
    destruct (i_taken s I k T) as [G | [w J]]; [congruence |].
    destruct (holds s w) as [| m l] eqn:H; [destruct J |]. destruct J as [<- | J].
    + eapply goes_on; eauto. right. apply ready_all; [intros; now apply (i_told s I) |].
      intros e j Ie Lj K. apply (i_left s I j); auto. apply First; auto. eapply p_order; eauto.
    + pose proof (i_nested s I w) as Z. rewrite H in Z. apply StronglySorted_inv in Z as [_ Z].
      rewrite Forall_forall in Z. destruct (Z k J) as [B _].
      assert (M : In m (holds s w)) by (rewrite H; now left). destruct (i_held s I w m M) as [Tm G].
      apply (i_place s I) in Tm as (q & a & E & _).
      rewrite First in G; [discriminate | eapply p_tasks; eauto | auto].
  - (* it is still in a queue, whose next task is no later *)
    destruct (p_all P k Lk) as (q & p & E).
    assert (Lp : place s q <= p).
    { destruct (Nat.le_gt_cases (place s q) p) as [| G]; auto. rewrite (proj2 (i_place s I k)) in T; [discriminate | eauto]. }
    destruct (nth_error (queue q) (place s q)) as [h |] eqn:Eh.
    2: { apply nth_error_None in Eh. assert (p < length (queue q)) by (apply nth_error_Some; congruence). lia. }
    assert (Rh : rank h <= rank k).
    { destruct (Nat.eq_dec (place s q) p) as [D |]; [subst p; replace h with k by congruence; auto |].
      pose proof (p_sorted P q (place s q) p h k Eh E). lia. }
    destruct (owner_dec s q) as [(v & Lv & Ov) | Free].
    + (* its owner is free, or can go on: a task that it waits for would be an earlier one of the queue *)
      destruct (holds s v) as [| m l] eqn:H.
      { apply (takes s v q h); auto. exists q. rewrite H. auto. }
      destruct (waits_or_goes s v k m l I Lk First H) as [| [Sm Rm]]; auto. exfalso.
      destruct (exists_last (l := m :: l)) as (l' & b & Q); [discriminate |]. rewrite Q in H.
      destruct (i_base s I v l' b H) as (o' & O' & B). assert (o' = q) by congruence. subst o'.
      destruct B as [B | (a & Ea & La)].
      * assert (p < length (queue q)) by (apply nth_error_Some; congruence). lia.
      * assert (Jb : In b (holds s v)) by (rewrite H; apply in_or_app; right; now left).
        destruct (i_held s I v b Jb) as [_ G]. rewrite First in G; [discriminate | eapply p_tasks; eauto |].
        apply (p_sorted P q a p); auto. lia.
    + (* nobody has the queue: who entered takes from its own, or from this one *)
      destruct (holds s w0) as [| m l] eqn:H.
      { destruct (nth_error (queue o) (place s o)) as [x |] eqn:Ex.
        - apply (takes s w0 o x); auto. exists o. rewrite H. auto.
        - apply (takes s w0 q h); auto. exists o. rewrite H. split; auto. right. now apply nth_error_None. }
      destruct (waits_or_goes s w0 k m l I Lk First H) as [| [Sm Rm]]; auto.
      assert (Jm : In m (holds s w0)) by (rewrite H; now left). destruct (i_held s I w0 m Jm) as [Tm _].
      assert (D : rank k <> rank m).
      { intros D. apply (p_linear P) in D; auto; [congruence |].
        apply (i_place s I) in Tm as (r & a & Er & _). eapply p_tasks; eauto. }
      apply (takes s w0 q h); auto. exists o. rewrite H. repeat split; auto. lia.
Qed.

(** Every run ends. *)
Definition one (b : bool) : nat := if b then 1 else 0.
Definition steps_of (s : state) (i : nat) : nat :=
  one (taken s i) + one (started s i) + one (finished s i) + one (left s i) + length (filter (told s i) (notes i)).
Definition entered (s : state) : nat := length (filter (fun w => match owns s w with Some _ => true | None => false end) (seq 0 W)).
Definition most : nat := W + list_sum (map (fun i => 4 + length (notes i)) (seq 0 N)).

Lemma sum_le (f g : nat -> nat) l : (forall i, f i <= g i) -> list_sum (map f l) <= list_sum (map g l).
Proof. intros H. induction l as [| a l IH]; simpl; auto. specialize (H a). lia. Qed.

Lemma sum_grows (f g : nat -> nat) k l : (forall i, f i <= g i) -> In k l -> f k < g k ->
  list_sum (map f l) < list_sum (map g l).
Proof.
  intros H. induction l as [| a l IH]; simpl; intros []; intros.
  - subst. pose proof (sum_le f g l H). lia.
  - specialize (H a). specialize (IH H0 H1). lia.
Qed.

Lemma filter_grows {A} (f g : A -> bool) x l : (forall y, f y = true -> g y = true) ->
  In x l -> f x = false -> g x = true -> length (filter f l) < length (filter g l).
Proof.
  intros H J F G. pose proof (filter_le f g l (fun y _ => H y)) as L.
  destruct (Nat.eq_dec (length (filter f l)) (length (filter g l))) as [E |]; [| lia].
  rewrite (proj1 (filter_all f g l (fun y _ => H y)) E x J G) in F. discriminate.
Qed.

Lemma one_put (f : nat -> bool) i k : one (f k) <= one (put f i true k).
Proof. unfold put. destruct (Nat.eqb k i), (f k); simpl; lia. Qed.

Lemma step_counts s x t : step s x t -> inv s ->
  entered s + list_sum (map (steps_of s) (seq 0 N)) < entered t + list_sum (map (steps_of t) (seq 0 N)).
Proof.
  intros H I.
  assert (In_N : forall w i l, holds s w = i :: l -> In i (seq 0 N) /\ left s i = false).
  { intros w i l E. assert (J : In i (holds s w)) by (rewrite E; now left). destruct (i_held s I w i J) as [T L].
    split; auto. apply in_seq. apply (i_place s I) in T as (q & a & Q & _). pose proof (p_tasks P _ _ _ Q). lia. }
  assert (B : forall a b, a < b -> entered s + a < entered s + b) by (intros; lia).
  destruct H as [s w q L E | s w q i L E M | s w i l E S R | s w i l E S F | s w i l e E F K T | s w i l E F A].
  - apply Nat.add_lt_mono_r. unfold entered. simpl. apply filter_grows with (x := w).
    + intros y. unfold put. destruct (Nat.eqb y w); auto.
    + apply in_seq. lia.
    + now rewrite E.
    + now rewrite put_same.
  - apply B, sum_grows with (k := i); unfold steps_of; simpl.
    + intros j. pose proof (one_put (taken s) i j). lia.
    + apply in_seq. pose proof (p_tasks P _ _ _ E). lia.
    + rewrite put_same, (next_untaken s q i I E). simpl. lia.
  - destruct (In_N _ _ _ E). apply B, sum_grows with (k := i); unfold steps_of; simpl; auto.
    + intros j. pose proof (one_put (started s) i j). lia.
    + rewrite put_same, S. simpl. lia.
  - destruct (In_N _ _ _ E). apply B, sum_grows with (k := i); unfold steps_of; simpl; auto.
    + intros j. pose proof (one_put (finished s) i j). lia.
    + rewrite put_same, F. simpl. lia.
  - destruct (In_N _ _ _ E). apply B, sum_grows with (k := i); unfold steps_of; simpl; auto.
    + intros j. apply Nat.add_le_mono_l, filter_le. intros x _ X. unfold put at 1.
      destruct (Nat.eqb_spec j i) as [-> |]; auto. apply put_true. auto.
    + rewrite put_same. apply Nat.add_lt_mono_l. apply filter_grows with (x := e); auto.
      * intros y Y. apply put_true. auto.
      * apply put_same.
  - destruct (In_N _ _ _ E) as [J G]. apply B, sum_grows with (k := i); unfold steps_of; simpl; auto.
    + intros j. pose proof (one_put (left s) i j). lia.
    + rewrite put_same, G. simpl. lia.
Qed.

Theorem bounded es s : run es s -> length es <= most.
Proof.
  intros R. assert (E : length es <= entered s + list_sum (map (steps_of s) (seq 0 N))).
  { induction R as [| es s x t R IH H]; [simpl; lia |]. apply run_inv in R as I.
    pose proof (step_counts s x t H I). rewrite app_length. simpl. lia. }
  assert (A : entered s <= W) by (unfold entered; rewrite <- (seq_length W 0) at 2; apply filter_length_le).
  assert (X : list_sum (map (steps_of s) (seq 0 N)) <= list_sum (map (fun i => 4 + length (notes i)) (seq 0 N))).
  { apply sum_le. intros i. pose proof (filter_length_le (told s i) (notes i)). unfold steps_of.
    destruct (taken s i), (started s i), (finished s i), (left s i); simpl; lia. }
  unfold most. lia.
Qed.

(** So what cannot go on is done. *)
Theorem completes es s : run es s -> (exists w q, w < W /\ owns s w = Some q) ->
  (forall x t, step s x t -> ~ fair s x) -> forall i, i < N -> finished s i = true.
Proof.
  intros R O Stop i L. destruct (left s i) eqn:F; [now apply (i_left s (run_inv _ _ R)) |]. exfalso.
  destruct (progress es s R O) as (x & t & H & Fx); [eauto | exact (Stop x t H Fx)].
Qed.

(** ** A judge of logs *)

Definition may_take_b (s : state) (w q i : nat) : bool :=
  match owns s w, holds s w with
  | None, _ => false
  | Some o, [] => Nat.eqb q o || Nat.leb (length (queue o)) (place s o)
  | Some _, m :: _ => negb (started s m) && Nat.ltb (rank i) (rank m)
  end.

Definition at_hand (s : state) (w i : nat) : bool :=
  match holds s w with m :: _ => Nat.eqb m i | [] => false end.

(** The state after an event; [None] if the event is no step. *)
Definition next (s : state) (x : event) : option state :=
  match x with
  | Enter w q =>
      if Nat.ltb w W && match owns s w with None => true | Some _ => false end
      then Some (State (put (owns s) w (Some q)) (place s) (holds s) (taken s) (started s) (finished s) (told s) (left s))
      else None
  | Take w q i =>
      if Nat.ltb w W && match nth_error (queue q) (place s q) with Some j => Nat.eqb j i | None => false end
         && may_take_b s w q i
      then Some (State (owns s) (put (place s) q (S (place s q))) (put (holds s) w (i :: holds s w))
        (put (taken s) i true) (started s) (finished s) (told s) (left s)) else None
  | Begin w i =>
      if at_hand s w i && negb (started s i) && ready s i
      then Some (State (owns s) (place s) (holds s) (taken s) (put (started s) i true) (finished s) (told s) (left s))
      else None
  | Finish w i =>
      if at_hand s w i && started s i && negb (finished s i)
      then Some (State (owns s) (place s) (holds s) (taken s) (started s) (put (finished s) i true) (told s) (left s))
      else None
  | Notify w i e =>
      if at_hand s w i && finished s i && existsb (Nat.eqb e) (notes i) && negb (told s i e)
      then Some (State (owns s) (place s) (holds s) (taken s) (started s) (finished s)
        (put (told s) i (put (told s i) e true)) (left s)) else None
  | Leave w i =>
      if at_hand s w i && finished s i && forallb (told s i) (notes i)
      then Some (State (owns s) (place s) (put (holds s) w (tl (holds s w))) (taken s) (started s) (finished s)
        (told s) (put (left s) i true)) else None
  end.

(** The number of events before the first that is no step, and the last state. *)
Fixpoint follow (s : state) (xs : list event) : nat * state :=
  match xs with
  | [] => (0, s)
  | x :: xs => match next s x with None => (0, s) | Some t => let (n, u) := follow t xs in (S n, u) end
  end.

(** A log is accepted if all its events are steps, and at its end all tasks are done. *)
Definition accepted (xs : list event) : bool :=
  let (n, s) := follow start xs in Nat.eqb n (length xs) && forallb (left s) (seq 0 N).

Lemma may_take_iff s w q i : may_take_b s w q i = true <-> may_take s w q i.
Proof.
  unfold may_take_b, may_take. destruct (owns s w) as [o |]; [| split; [discriminate | intros (o & E & _); discriminate]].
  destruct (holds s w) as [| m l].
  - rewrite orb_true_iff, Nat.eqb_eq, Nat.leb_le. split; [eauto | intros (o' & [= <-] & H); auto].
  - rewrite andb_true_iff, negb_true_iff, Nat.ltb_lt. split; [eauto | intros (o' & [= <-] & H); auto].
Qed.

Lemma at_hand_iff s w i : at_hand s w i = true <-> exists l, holds s w = i :: l.
Proof.
  unfold at_hand. destruct (holds s w) as [| m l]; [split; [discriminate | intros (l & E); discriminate] |].
  rewrite Nat.eqb_eq. split; [intros ->; eauto | intros (l' & [= -> _]); auto].
Qed.

(** The judge decides the steps. *)
Theorem next_iff s x t : next s x = Some t <-> step s x t.
Proof.
  split.
  - destruct x; simpl; intros E;
      match type of E with (if ?b then _ else _) = _ => destruct b eqn:B; [| discriminate] end;
      injection E as <-; repeat rewrite andb_true_iff in B.
    + destruct B as [L B]. apply Nat.ltb_lt in L. destruct (owns s w) eqn:O; [discriminate |]. now constructor.
    + destruct B as [[L B] M]. apply Nat.ltb_lt in L. apply may_take_iff in M.
      destruct (nth_error (queue q) (place s q)) as [j |] eqn:E; [| discriminate]. apply Nat.eqb_eq in B. subst.
      now constructor.
    + destruct B as [[H S] R]. apply at_hand_iff in H as [l H]. apply negb_true_iff in S. econstructor; eauto.
    + destruct B as [[H S] F]. apply at_hand_iff in H as [l H]. apply negb_true_iff in F. econstructor; eauto.
    + destruct B as [[[H F] K] T]. apply at_hand_iff in H as [l H]. apply negb_true_iff in T. apply noted in K.
      econstructor; eauto.
    + destruct B as [[H F] A]. apply at_hand_iff in H as [l H]. rewrite forallb_forall in A. rewrite H. simpl.
      econstructor; eauto.
  - intros H. destruct H as [s w q L E | s w q i L E M | s w i l E S R | s w i l E S F | s w i l e E F K T | s w i l E F A];
      simpl.
    + apply Nat.ltb_lt in L. now rewrite L, E.
    + apply Nat.ltb_lt in L. apply may_take_iff in M. now rewrite L, E, Nat.eqb_refl, M.
    + rewrite (proj2 (at_hand_iff s w i)) by eauto. now rewrite S, R.
    + rewrite (proj2 (at_hand_iff s w i)) by eauto. now rewrite S, F.
    + rewrite (proj2 (at_hand_iff s w i)) by eauto. apply noted in K. now rewrite F, K, T.
    + rewrite (proj2 (at_hand_iff s w i)) by eauto. apply forallb_forall in A. now rewrite F, A, E.
Qed.

Lemma follow_run es s xs : run es s -> let (n, t) := follow s xs in run (es ++ firstn n xs) t.
Proof.
  revert es s. induction xs as [| x xs IH]; intros es s R; simpl; [now rewrite app_nil_r |].
  destruct (next s x) as [t |] eqn:E; [| simpl; now rewrite app_nil_r].
  apply next_iff in E. specialize (IH (es ++ [x]) t (R_step _ _ _ _ R E)). destruct (follow t xs) as [n u].
  simpl. now rewrite <- app_assoc in IH.
Qed.

Lemma run_follow es s : run es s -> follow start es = (length es, s).
Proof.
  intros R. assert (X : forall xs t u x v, follow t xs = (length xs, u) -> next u x = Some v ->
    follow t (xs ++ [x]) = (length (xs ++ [x]), v)).
  { induction xs as [| y xs IH]; simpl; intros t u x v E V.
    - injection E as ->. now rewrite V.
    - destruct (next t y) as [t' |]; [| discriminate]. destruct (follow t' xs) as [m u'] eqn:F.
      injection E as -> ->. now rewrite (IH t' u x v F V). }
  induction R as [| es s x t R IH H]; [reflexivity |]. eapply X; eauto. now apply next_iff.
Qed.

(** It accepts the logs of runs to their end, and no others. *)
Theorem accepted_iff xs : accepted xs = true <->
  exists s, run xs s /\ forall i, i < N -> left s i = true.
Proof.
  unfold accepted. split.
  - pose proof (follow_run [] start xs R_start) as R. destruct (follow start xs) as [n s]. simpl in R.
    intros [A B]%andb_true_iff. apply Nat.eqb_eq in A. subst. rewrite firstn_all in R. exists s. split; auto.
    intros i L. rewrite forallb_forall in B. apply B, in_seq. lia.
  - intros (s & R & A). rewrite (run_follow xs s R), Nat.eqb_refl. apply forallb_forall.
    intros i I. apply A. apply in_seq in I. lia.
Qed.

(** ** What an accepted log says: each task begins once, after all have run that notify what it waits for *)

Lemma run_last es x t : run (es ++ [x]) t -> exists s, run es s /\ step s x t.
Proof.
  intros R. inversion R as [E | ds s y u R' H E]; [now destruct es |].
  apply app_inj_tail in E as [-> ->]. eauto.
Qed.

Lemma run_prefix ys zs t : run (ys ++ zs) t -> exists s, run ys s.
Proof.
  revert t. induction zs as [| z zs IH] using rev_ind; intros t R; [rewrite app_nil_r in R; eauto |].
  rewrite app_assoc in R. apply run_last in R as (s & R & _). eauto.
Qed.

Lemma run_at ys x zs t : run (ys ++ x :: zs) t -> exists s u, run ys s /\ step s x u.
Proof.
  intros R. change (x :: zs) with ([x] ++ zs) in R. rewrite app_assoc in R.
  apply run_prefix in R as [u R]. apply run_last in R as (s & R & H). eauto.
Qed.

Lemma said es s : run es s ->
  (forall i, started s i = true <-> exists w, In (Begin w i) es) /\
  (forall i, finished s i = true <-> exists w, In (Finish w i) es).
Proof.
  induction 1 as [| es s x t R [St Fi] H]; [split; intros i; split; [discriminate | intros (w & []) | discriminate | intros (w & [])] |].
  assert (B : forall i, (exists w, In (Begin w i) (es ++ [x])) <-> started s i = true \/ exists w, x = Begin w i).
  { intros i. rewrite St. split.
    - intros (w & [I | [E | []]]%in_app_or); eauto.
    - intros [(w & I) | (w & ->)]; exists w; apply in_or_app; simpl; auto. }
  assert (F : forall i, (exists w, In (Finish w i) (es ++ [x])) <-> finished s i = true \/ exists w, x = Finish w i).
  { intros i. rewrite Fi. split.
    - intros (w & [I | [E | []]]%in_app_or); eauto.
    - intros [(w & I) | (w & ->)]; exists w; apply in_or_app; simpl; auto. }
  split; intros k; rewrite ?B, ?F; destruct H; simpl; try rewrite put_true;
    (split; [intros; try tauto | intros [| (v & E)]; auto; try discriminate]).
  - destruct H2 as [-> |]; eauto.
  - injection E as -> ->. auto.
  - destruct H2 as [-> |]; eauto.
  - injection E as -> ->. auto.
Qed.

Theorem log_order xs ys w i zs j e : accepted xs = true -> xs = ys ++ Begin w i :: zs ->
  In e (waits i) -> j < N -> In e (notes j) -> exists v, In (Finish v j) ys.
Proof.
  intros (s & R & _)%accepted_iff -> I L K. apply run_at in R as (t & u & R & H).
  apply (said _ _ R). eapply no_early_read; eauto; inversion H; subst; simpl; auto using put_same.
Qed.

Theorem log_once xs i : accepted xs = true -> i < N ->
  exists ys w zs, xs = ys ++ Begin w i :: zs /\ forall v, ~ In (Begin v i) (ys ++ zs).
Proof.
  intros (s & R & A)%accepted_iff L.
  assert (B : exists w, In (Begin w i) xs).
  { apply (said _ _ R). apply (i_finished s (run_inv _ _ R)). now apply (i_left s (run_inv _ _ R)), A. }
  destruct B as (w & (ys & zs & ->)%in_split). exists ys, w, zs. split; auto.
  assert (X : forall ds v cs t, run (ds ++ Begin v i :: cs) t -> forall v', ~ In (Begin v' i) ds).
  { intros ds v cs t Q v' I. apply run_at in Q as (a & b & Q & H).
    assert (started a i = true) by (apply (said _ _ Q); eauto). inversion H; congruence. }
  intros v [I | I]%in_app_or; [eapply X; eauto |].
  apply in_split in I as (c & d & ->). change (Begin w i :: c ++ Begin v i :: d) with ((Begin w i :: c) ++ Begin v i :: d) in R.
  rewrite app_assoc in R. eapply (X _ _ _ _ R w). apply in_or_app. right. now left.
Qed.
End Events.

(** ** Tickets: one queue of all tasks *)

Definition tickets (N : nat) (q : nat) : list nat := if Nat.eqb q 0 then seq 0 N else [].

Lemma nth_seq n a i : nth_error (seq 0 n) a = Some i -> i = a /\ a < n.
Proof.
  intros E. assert (L : a < length (seq 0 n)) by (apply nth_error_Some; congruence). rewrite seq_length in L.
  apply (nth_error_nth _ _ 0) in E. rewrite seq_nth in E by auto. auto.
Qed.

Theorem tickets_plan N waits notes :
  (forall i j e, i < N -> j < N -> In e (waits i) -> In e (notes j) -> j < i) ->
  plan N waits notes (tickets N) (fun i => i).
Proof.
  intros H. split; auto; unfold tickets.
  - intros q a b i j. destruct (Nat.eqb q 0); [| destruct a; discriminate].
    intros [-> _]%nth_seq [-> _]%nth_seq. auto.
  - intros q a i. destruct (Nat.eqb q 0); [| destruct a; discriminate]. intros [-> L]%nth_seq. auto.
  - intros q r a b i. destruct (Nat.eqb_spec q 0), (Nat.eqb_spec r 0); try (destruct a; discriminate);
      try (destruct b; discriminate). congruence.
  - intros i L. exists 0, i. simpl. rewrite (nth_error_nth' _ 0) by (rewrite seq_length; auto). now rewrite seq_nth.
Qed.
