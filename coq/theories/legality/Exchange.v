(** * Draws in another order

    Two draws next to each other may be exchanged, if the samples that they get are exchanged too: the
    outcome is the same.  So a rewrite that moves a draw past another one gives other numbers, and the
    outcomes that it can give are the same, as often as before. *)

From Coq Require Import List Bool PeanoNat Lia.
Import ListNotations.
From PyPM Require Import Names.
From PyPM.legality Require Import Execution Legal Windows Origins.

Section Exchange.
Context {τ : Torch}.

(** ** States that agree everywhere *)

Record same_state (σ σ' : state) : Prop := {
  same_heap : forall s, heap σ s = heap σ' s;
  same_env : forall n, env σ n = env σ' n;
  same_now_mode : now_mode σ = now_mode σ';
  same_now_generator : now_generator σ = now_generator σ';
  same_past : history σ = history σ'
}.

Lemma same_look σ σ' n :
  (forall s, heap σ s = heap σ' s) -> (forall n, env σ n = env σ' n) -> look σ n = look σ' n.
Proof. intros H E. unfold look. now rewrite E, H. Qed.

Lemma same_writes σ σ' args new is : forall h h',
  (forall n, env σ n = env σ' n) -> (forall s, h s = h' s) ->
  forall s, fold_left (write_argument σ args new) is h s = fold_left (write_argument σ' args new) is h' s.
Proof.
  induction is as [| i is IH]; intros h h' E H s; simpl; auto. apply IH; auto. clear s. intros s.
  unfold write_argument. destruct (nth_error args i) as [a |]; auto.
  unfold write, update. rewrite E, H. destruct (storage_eq_dec _ s); auto.
Qed.

Lemma same_step σ σ' x : same_state σ σ' -> same_state (step σ x) (step σ' x).
Proof.
  intros [H E M G P]. destruct x as [n [f args | m]]; simpl.
  - assert (C : surround f σ = surround f σ') by (unfold surround; now rewrite M, G, P).
    assert (V : map (look σ) args = map (look σ') args).
    { apply map_ext. intros a. now apply same_look. }
    rewrite C, V, M, G, P. set (vs := map (look σ') args). set (c := surround f σ').
    pose proof (same_writes σ σ' args (written f c vs) (writes f) (heap σ) (heap σ') E H) as W.
    destruct (viewed f args c vs) as [a |]; split; simpl; auto.
    + intros k. unfold bind. rewrite !E. destruct (Nat.eqb n k); auto.
    + intros s. unfold update. destruct (storage_eq_dec _ s); auto.
    + intros k. unfold bind. destruct (Nat.eqb n k); auto.
  - split; simpl; auto. intros k. unfold bind. rewrite E. destruct (Nat.eqb n k); auto.
Qed.

Lemma same_run g : forall σ σ', same_state σ σ' -> same_state (run g σ) (run g σ').
Proof. induction g as [| x g IH]; intros σ σ' S; simpl; auto. apply IH. now apply same_step. Qed.

(** Names show the same if they are the same tensors, in memory of the same content. *)
Lemma same_tensors_shown k ns : forall σ σ',
  (forall n, In n ns -> env σ n = env σ' n /\ heap σ (home (env σ n)) = heap σ' (home (env σ n))) ->
  same_shown k ns σ σ'.
Proof.
  induction k as [| k IH]; intros σ σ' S; split; auto;
    try (apply map_ext_in; intros n I; unfold look; destruct (S n I) as [<- H]; now rewrite H).
  intros n w I _. apply IH. intros m J. simpl. destruct (S n I) as [E H], (S m J) as [E' H'].
  split; [exact E' |]. unfold write, update. rewrite <- E, H. now destruct (storage_eq_dec _ _).
Qed.

Lemma same_state_outcome inputs outputs σ σ' : same_state σ σ' -> same_outcome inputs outputs σ σ'.
Proof.
  intros [H E M G P]. split; auto.
  - intros k. apply same_tensors_shown. auto.
  - intros n m _ _. now rewrite !E.
Qed.

(** ** Two calls, one after the other *)

(** It makes new memory, writes nothing, and leaves modes and the outside alone; it may draw. *)
Definition samples (f : operator) : bool :=
  match shares f, writes f with Fresh, [] => negb (switches f) && negb (acts f) | _, _ => false end.

(** The state with the stream elsewhere. *)
Definition with_generator (σ : state) (γ : generator) : state :=
  State (heap σ) (env σ) (now_mode σ) γ (history σ).

Definition after_draw (f : operator) (μ : mode) (γ : generator) (vs : list value) : generator :=
  if draws f then next_generator f (Surroundings μ (Some γ) None) vs else γ.

Definition sampled (f : operator) (μ : mode) (γ : generator) (vs : list value) : value :=
  result f (Surroundings μ (if draws f then Some γ else None) None) vs.

(** In the stream [γ'] the samples of two calls have changed places with those in [γ]: each gets the
    same, in the other order, and the stream goes on alike. *)
Record exchanged (μ : mode) (f g : operator) (vs ws : list value) (γ γ' : generator) : Prop := {
  first_gets : sampled f μ γ vs = sampled f μ (after_draw g μ γ' ws) vs;
  second_gets : sampled g μ (after_draw f μ γ vs) ws = sampled g μ γ' ws;
  stream_goes_on :
    after_draw g μ (after_draw f μ γ vs) ws = after_draw f μ (after_draw g μ γ' ws) vs
}.

Lemma step_samples σ n f args : samples f = true ->
  step σ (n, Call f args) =
  State (update (heap σ) (Made n) (sampled f (now_mode σ) (now_generator σ) (map (look σ) args)))
    (bind (env σ) n (Tensor (Made n) [])) (now_mode σ)
    (after_draw f (now_mode σ) (now_generator σ) (map (look σ) args)) (history σ).
Proof.
  unfold samples, step, surround, sight, viewed, sampled, after_draw.
  destruct (shares f), (writes f); try discriminate. intros S. apply andb_true_iff in S as [S A].
  apply negb_true_iff in S, A. rewrite S, A. destruct (draws f); reflexivity.
Qed.

Lemma look_past σ m a w μ γ h :
  m <> a -> home (env σ a) <> Made m ->
  look (State (update (heap σ) (Made m) w) (bind (env σ) m (Tensor (Made m) [])) μ γ h) a = look σ a.
Proof.
  intros N H. unfold look. simpl. rewrite bind_other by auto. unfold update.
  destruct (storage_eq_dec _ _); [congruence | auto].
Qed.

Lemma exchange_steps σ γ' n f args m g brgs :
  samples f = true -> samples g = true -> n <> m -> ~ In n brgs -> ~ In m args ->
  (forall a, In a (args ++ brgs) -> home (env σ a) <> Made n /\ home (env σ a) <> Made m) ->
  exchanged (now_mode σ) f g (map (look σ) args) (map (look σ) brgs) (now_generator σ) γ' ->
  same_state (step (step σ (n, Call f args)) (m, Call g brgs))
    (step (step (with_generator σ γ') (m, Call g brgs)) (n, Call f args)).
Proof.
  intros Sf Sg N Nb Na Ho [F S G].
  assert (Eb : forall w μ γ h, map (look (State (update (heap σ) (Made n) w)
                 (bind (env σ) n (Tensor (Made n) [])) μ γ h)) brgs = map (look σ) brgs).
  { intros. apply map_ext_in. intros a I. apply look_past; [congruence |].
    apply Ho, in_or_app. auto. }
  assert (Ea : forall w μ γ h, map (look (State (update (heap σ) (Made m) w)
                 (bind (env σ) m (Tensor (Made m) [])) μ γ h)) args = map (look σ) args).
  { intros. apply map_ext_in. intros a I. apply look_past; [congruence |].
    apply Ho, in_or_app. auto. }
  rewrite !(step_samples _ _ _ _ Sf), !(step_samples _ _ _ _ Sg). simpl.
  change (look (with_generator σ γ')) with (look σ). rewrite Eb, Ea. split; simpl; auto.
  - intros s. unfold update. rewrite F, S.
    destruct (storage_eq_dec (Made m) s), (storage_eq_dec (Made n) s); auto. congruence.
  - intros k. unfold bind. destruct (Nat.eqb_spec m k), (Nat.eqb_spec n k); auto. congruence.
Qed.

(** Streams: [push a γ] is [γ] with the samples [a] before it.  A draw takes as many as its operator and
    its operands ask for, and sees no others. *)
Lemma exchanged_streams (A : Type) (push : list A -> generator -> generator)
    (takes : operator -> list value -> nat) μ f g vs ws a b γ :
  (forall f vs a γ, draws f = true -> length a = takes f vs ->
     next_generator f (Surroundings μ (Some (push a γ)) None) vs = γ) ->
  (forall f vs a γ γ', draws f = true -> length a = takes f vs ->
     result f (Surroundings μ (Some (push a γ)) None) vs =
     result f (Surroundings μ (Some (push a γ')) None) vs) ->
  draws f = true -> draws g = true -> length a = takes f vs -> length b = takes g ws ->
  exchanged μ f g vs ws (push a (push b γ)) (push b (push a γ)).
Proof.
  intros N R Df Dg La Lb. split; unfold sampled, after_draw; rewrite Df, Dg, !N; auto.
Qed.

(** ** In a graph *)

Definition exchangeable (x y : node) : bool :=
  match snd x, snd y with
  | Call f _, Call g brgs => samples f && samples g && negb (mem (fst x) brgs)
  | _, _ => false
  end.

(** The streams that differ by exchanging what two nodes draw, in the state before them. *)
Definition exchanges (σ : state) (x y : node) (γ' : generator) : Prop :=
  match snd x, snd y with
  | Call f args, Call g brgs =>
      exchanged (now_mode σ) f g (map (look σ) args) (map (look σ) brgs) (now_generator σ) γ'
  | _, _ => False
  end.

Theorem exchange_outcome inputs outputs p x y q σ γ' :
  scoped (map fst inputs) (p ++ x :: y :: q) = true -> arranged inputs σ ->
  exchangeable x y = true -> exchanges (run p σ) x y γ' ->
  same_outcome (map fst inputs) outputs (run (p ++ x :: y :: q) σ)
    (run (y :: x :: q) (with_generator (run p σ) γ')).
Proof.
  intros Sc Arr X E. apply same_state_outcome. unfold run at 1. rewrite fold_left_app.
  fold (run p σ). set (σ0 := run p σ) in *. simpl. apply same_run.
  rewrite scoped_app, andb_true_iff in Sc. destruct Sc as [Sp Sx].
  assert (B : bounded σ0 (rev (names p) ++ map fst inputs)).
  { apply bounded_run; auto.
    apply (bounded_start (Rewrite inputs [] [] [] [] [])). exact Arr. }
  destruct x as [n [f args | a]], y as [m [g brgs | b]]; try discriminate.
  unfold exchangeable in X. simpl in X. rewrite !andb_true_iff, negb_true_iff in X.
  destruct X as [[Sf Sg] Nb]. unfold exchanges in E. simpl in E.
  apply scoped_cons in Sx as (Un & Kn & Sx). apply scoped_cons in Sx as (Um & Km & _).
  simpl in Kn, Km, Um.
  assert (Nn : ~ In n brgs) by (rewrite <- mem_spec; congruence).
  apply exchange_steps; auto. intros a I.
  assert (D : In a (rev (names p) ++ map fst inputs)).
  { apply in_app_or in I as [I | I]; [now apply Kn |]. destruct (Km a I) as [-> | K]; auto.
    contradiction. }
  split; intros H; apply (B a _ D) in H; auto.
Qed.
End Exchange.
