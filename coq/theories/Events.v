(** * Event graphs: any acyclic graph of tasks, any number of workers, tickets in a topological order

    A worker takes the next ticket, waits until the events of its task have counted all that the task
    depends on, runs it, and notifies.  With any number of workers and any interleaving: a task starts
    when all that it reads is written; and unless all is done, something can happen.  A run has at
    most [3 * N] steps, so each run ends with everything done.

    [pypm/events/workers.h] runs tables so, and [pypm/events/checks.py] checks that their order is
    topological and their counts are those of [arrived]. *)

From Coq Require Import List Bool Arith Lia.
Import ListNotations.

Lemma filter_length_le {A} (f : A -> bool) l : length (filter f l) <= length l.
Proof. induction l as [| a l IH]; simpl; auto. destruct (f a); simpl; lia. Qed.

Section Events.
Variables (N W : nat) (deps : nat -> list nat).
Hypothesis topological : forall i j, i < N -> In j (deps i) -> j < i.   (* tickets in a topological order *)

Record state := State {
  next : nat;                              (** the next ticket *)
  holds : nat -> option nat;               (** the task of a worker *)
  started : nat -> bool;
  finished : nat -> bool
}.
Definition start : state := State 0 (fun _ => None) (fun _ => false) (fun _ => false).
Definition put {A} (f : nat -> A) i a : nat -> A := fun j => if Nat.eqb j i then a else f j.

(** What an event counts, and what a wait compares it with. *)
Definition arrived (s : state) (i : nat) : nat := length (filter (finished s) (deps i)).
Definition ready (s : state) (i : nat) : bool := Nat.eqb (arrived s i) (length (deps i)).

Inductive step : state -> state -> Prop :=
| Take s w : w < W -> holds s w = None -> next s < N ->
    step s (State (S (next s)) (put (holds s) w (Some (next s))) (started s) (finished s))
| Start s w i : holds s w = Some i -> started s i = false -> ready s i = true ->
    step s (State (next s) (holds s) (put (started s) i true) (finished s))
| Finish s w i : holds s w = Some i -> started s i = true ->
    step s (State (next s) (put (holds s) w None) (started s) (put (finished s) i true)).

Record inv (s : state) : Prop := {
  i_next : next s <= N;
  i_held : forall w i, holds s w = Some i -> w < W /\ i < next s /\ finished s i = false;
  i_own : forall w w' i, holds s w = Some i -> holds s w' = Some i -> w = w';
  i_taken : forall i, i < next s -> finished s i = true \/ exists w, holds s w = Some i;
  i_started : forall i, started s i = true -> i < next s /\ forall j, In j (deps i) -> finished s j = true;
  i_finished : forall i, finished s i = true -> started s i = true
}.

Lemma ready_all s i : ready s i = true <-> forall j, In j (deps i) -> finished s j = true.
Proof.
  unfold ready, arrived. rewrite Nat.eqb_eq. generalize (deps i) as l. induction l as [| j l IH]; simpl.
  - split; [intros _ j [] | auto].
  - pose proof (filter_length_le (finished s) l) as L. destruct (finished s j) eqn:E; simpl.
    + split; [intros H k [<- | I]; auto; apply IH; auto | intros H; f_equal; apply IH; auto].
    + split; [lia | intros H; rewrite (H j) in E by auto; discriminate].
Qed.

Lemma inv_start : inv start.
Proof. split; simpl; try discriminate; try lia. Qed.

Lemma put_same {A} (f : nat -> A) i a : put f i a i = a.
Proof. unfold put. now rewrite Nat.eqb_refl. Qed.
Lemma put_other {A} (f : nat -> A) i a j : j <> i -> put f i a j = f j.
Proof. unfold put. destruct (Nat.eqb_spec j i); congruence. Qed.
Lemma put_true f i j : put f i true j = true <-> j = i \/ f j = true.
Proof. unfold put. destruct (Nat.eqb_spec j i); intuition congruence. Qed.
Lemma put_some (f : nat -> option nat) w a v i : put f w a v = Some i -> v = w /\ a = Some i \/ v <> w /\ f v = Some i.
Proof. unfold put. destruct (Nat.eqb_spec v w); auto. Qed.

Lemma inv_step s t : step s t -> inv s -> inv t.
Proof.
  intros H [Nx He Ow Ta St Fi].
  assert (NotYet : finished s (next s) = false).
  { destruct (finished s (next s)) eqn:F; auto. apply Fi, St in F. lia. }
  destruct H as [s w L Q Ln | s w i Q S R | s w i Q S]; split; simpl; auto; try lia.
  - intros v i E. apply put_some in E as [[-> [= <-]] | [_ E]]; [repeat split; auto; lia |].
    destruct (He _ _ E) as (A & B & C). repeat split; auto; lia.
  - intros v v' i E E'. apply put_some in E as [[-> [= <-]] | [_ E]], E' as [[-> E'] | [_ E']]; auto.
    + apply He in E'. lia.
    + injection E' as <-. apply He in E. lia.
    + eauto.
  - intros i Li. destruct (Nat.eq_dec i (next s)) as [-> | Ne]; [right; exists w; apply put_same |].
    destruct (Ta i) as [F | [v E]]; [lia | auto |]. right. exists v. rewrite put_other; congruence.
  - intros i F. apply St in F as [A B]. split; auto; lia.
  - intros k F. apply put_true in F as [-> | F]; auto. destruct (He _ _ Q) as (_ & Li & _). split; auto.
    now apply ready_all.
  - intros k F. apply put_true. auto.
  - intros v k E. apply put_some in E as [[_ E] | [Ne E]]; [discriminate |].
    destruct (He _ _ E) as (A & B & C). repeat split; auto. rewrite put_other; auto.
    intros ->. apply Ne. eauto.
  - intros v v' k E E'. apply put_some in E as [[_ E] | [_ E]], E' as [[_ E'] | [_ E']]; try discriminate. eauto.
  - intros k Lk. destruct (Ta k Lk) as [F | [v E]]; [left; apply put_true; auto |].
    destruct (Nat.eq_dec v w) as [-> | Ne]; [left; apply put_true; left; congruence |].
    right. exists v. now rewrite put_other.
  - intros k F. apply St in F as [A B]. split; auto. intros j I. apply put_true. auto.
  - intros k F. apply put_true in F as [-> | F]; auto.
Qed.

Inductive reaches : nat -> state -> Prop :=
| R_start : reaches 0 start
| R_step n s t : reaches n s -> step s t -> reaches (S n) t.

Lemma reached n s : reaches n s -> inv s.
Proof. induction 1; [apply inv_start | eapply inv_step; eauto]. Qed.

(** No early read: when a task starts, all that it depends on is done. *)
Theorem no_early_read n s t i j : reaches n s -> step s t -> started s i = false -> started t i = true ->
  In j (deps i) -> finished s j = true.
Proof.
  intros R H F T I. apply reached in R. destruct H; simpl in *; try congruence.
  unfold put in T. destruct (Nat.eqb_spec i i0) as [-> |]; [| congruence]. now apply (ready_all s i0).
Qed.

(** Of the tasks that are not done there is a first. *)
Lemma first_open s i : finished s i = false ->
  exists k, k <= i /\ finished s k = false /\ forall j, j < k -> finished s j = true.
Proof.
  induction i as [i IH] using lt_wf_ind. intros F. destruct (forallb (finished s) (seq 0 i)) eqn:A.
  - exists i. rewrite forallb_forall in A. repeat split; auto. intros j L. apply A, in_seq. lia.
  - assert (X : exists j, j < i /\ finished s j = false).
    { clear - A. induction i as [| i IHi]; [discriminate |]. rewrite seq_S, forallb_app in A. simpl in A.
      destruct (forallb (finished s) (seq 0 i)) eqn:B.
      - exists i. rewrite andb_true_r in A. split; auto.
      - destruct (IHi eq_refl) as (j & L & G). exists j. split; auto. }
    destruct X as (j & L & G). destruct (IH j L G) as (k & K & R). exists k. split; [lia | exact R].
Qed.

(** A task that is taken, and before which all is done, can go on. *)
Lemma goes_on s k : inv s -> k < next s -> finished s k = false ->
  (forall j, j < k -> finished s j = true) -> exists t, step s t.
Proof.
  intros [Nx He Ow Ta St Fi] L F All. destruct (Ta k L) as [X | [w E]]; [congruence |].
  destruct (started s k) eqn:S.
  - eexists. eapply Finish; eauto.
  - eexists. eapply Start; eauto. apply ready_all. intros j I. apply All. apply (topological k); auto. lia.
Qed.

Hypothesis a_worker : 0 < W.

Theorem progress n s : reaches n s -> (exists i, i < N /\ finished s i = false) -> exists t, step s t.
Proof.
  intros R (i & Li & F). apply reached in R. pose proof R as [Nx He Ow Ta St Fi].
  destruct (Nat.lt_ge_cases i (next s)) as [L | L].
  - destruct (first_open s i F) as (k & K & G & All). apply (goes_on s k); auto. lia.
  - (* all that is taken may be done: a worker is free, or one can go on *)
    destruct (holds s 0) as [m |] eqn:E; [| eexists; eapply (Take s 0); auto; lia].
    destruct (He _ _ E) as (_ & Lm & Fm).
    destruct (first_open s m Fm) as (k & K & G & All). apply (goes_on s k); auto. lia.
Qed.

(** Every run ends: a ticket, a start and an end for each task. *)
Definition count (f : nat -> bool) (n : nat) : nat := length (filter f (seq 0 n)).

Lemma count_le f n : count f n <= n.
Proof. unfold count. rewrite <- (seq_length n 0) at 2. apply filter_length_le. Qed.
Lemma count_put f i n : i < n -> f i = false -> count (put f i true) n = S (count f n).
Proof.
  unfold count. induction n as [| n IH]; intros L F; [lia |]. rewrite !seq_S, !filter_app, !app_length. simpl.
  destruct (Nat.eq_dec i n) as [-> | Ne].
  - unfold put at 2. rewrite Nat.eqb_refl, F. simpl.
    rewrite (filter_ext_in (put f n true) f); [lia |]. intros j I. apply in_seq in I. unfold put.
    destruct (Nat.eqb_spec j n); auto. lia.
  - rewrite IH by (auto; lia). unfold put. destruct (Nat.eqb_spec n i); [lia |]. destruct (f n); simpl; lia.
Qed.

Theorem bounded n s : reaches n s -> n = next s + count (started s) N + count (finished s) N /\ n <= 3 * N.
Proof.
  intros R. assert (E : n = next s + count (started s) N + count (finished s) N).
  { induction R as [| n s t R IH H].
    - simpl. unfold count. induction (seq 0 N); simpl; auto.
    - apply reached in R. destruct R as [Nx He _ _ St Fi]. destruct H; simpl.
      + lia.
      + destruct (He _ _ H) as (_ & L & _). rewrite count_put by (auto; lia). lia.
      + destruct (He _ _ H) as (_ & L & F). rewrite count_put by (auto; lia). lia. }
  split; auto. apply reached in R. pose proof (i_next _ R).
  pose proof (count_le (started s) N). pose proof (count_le (finished s) N). lia.
Qed.

(** So what cannot go on is done. *)
Theorem completes n s : reaches n s -> (forall t, ~ step s t) -> forall i, i < N -> finished s i = true.
Proof.
  intros R Stop i L. destruct (finished s i) eqn:F; auto. exfalso.
  destruct (progress n s R) as [t H]; [eauto | exact (Stop t H)].
Qed.
End Events.
