(** * Enumeration (T5)

    The run that collects all answers finds, up to extension, exactly the matches. *)

From Coq Require Import List Bool PeanoNat.
Import ListNotations.
From PyPM Require Import Names Values Terms Guards Patterns Declarative Stores Machine WellFormed
  Soundness Invariant Completeness.

Section Enumeration.
Context {Δ : Domain} {T : Type} {Σ : Structure T}.

(** ** [⇓] is deterministic, and starts like the machine *)

Theorem answers_deterministic (st : state T) o1 o2 : st ⇓ o1 -> st ⇓ o2 -> o1 = o2.
Proof.
  intros H. revert o2. induction H; intros o2 H2; inversion H2; subst; try discriminate; auto.
  f_equal. auto.
Qed.

Theorem answers_first (st : state T) o :
  st ⇓ o ->
  match o with
  | [] => st ⟶* []
  | σ :: _ => exists stk, st ⟶* (σ, []) :: stk
  end.
Proof.
  induction 1 as [| σ stk o _ _ | st o Run _ IH].
  - constructor.
  - exists stk. constructor.
  - destruct o as [| σ o]; [| destruct IH as [stk IH]; exists stk]; econstructor; eauto; now split.
Qed.

(** ** A fuelled version that computes *)

Fixpoint run (n : nat) (st : state T) : option (list (store T)) :=
  match n with
  | 0 => None
  | S n =>
      match st with
      | [] => Some []
      | (σ, []) :: stk => option_map (cons σ) (run n stk)
      | c :: stk => run n (expand c ++ stk)
      end
  end.

Theorem run_sound n st o : run n st = Some o -> st ⇓ o.
Proof.
  revert st o. induction n as [| n IH]; intros st o H; [discriminate |].
  destruct st as [| [σ [| a k]] stk]; simpl in H.
  - injection H as <-. constructor.
  - destruct (run n stk) as [o' |] eqn:E; [| discriminate]. injection H as <-.
    constructor. auto.
  - apply answers_step; [reflexivity |]. apply IH. exact H.
Qed.

Theorem run_complete st o : st ⇓ o -> exists n, run n st = Some o.
Proof.
  induction 1 as [| σ stk o _ [n IH] | st o Run _ [n IH]].
  - now exists 1.
  - exists (S n). simpl. now rewrite IH.
  - exists (S n). destruct st as [| [σ [| a k]] stk]; try discriminate. exact IH.
Qed.

(** ** Every answer is a match *)

Lemma answers_solve (st : state T) o :
  st ⇓ o -> forall σ, In σ o -> Exists (solves (get σ)) st.
Proof.
  induction 1 as [| σ stk o _ IH | st o Run _ IH]; intros σ' I.
  - destruct I.
  - destruct I as [<- | I]; [left; apply solves_success, extends_refl | right; auto].
  - apply step_sound. auto.
Qed.

Theorem answers_sound p t o σ θ :
  init p t ⇓ o -> In σ o -> theta σ ⊆ θ -> [] ⊢ p @ θ ≈ t.
Proof.
  intros H I. apply matches_mono. apply (solves_init (get σ)). eapply answers_solve; eauto.
Qed.

(** ** Every match is above an answer *)

Lemma answers_keep θ (st : state T) o :
  st ⇓ o -> Forall sound_config st -> Exists (has_solution θ) st ->
  exists σ, In σ o /\ has_solution θ (σ, []).
Proof.
  induction 1 as [| σ stk o _ IH | st o Run _ IH]; intros W X.
  - inversion X.
  - inversion W; subst. inversion X; subst; [exists σ; simpl; auto |].
    destruct IH as (σ' & ? & ?); auto. exists σ'. simpl. auto.
  - apply IH; auto using step_invariant, step_complete.
Qed.

Theorem answers_complete p t o θ :
  wf p = true -> init p t ⇓ o -> [] ⊢ p @ θ ≈ t -> exists σ, In σ o /\ theta σ ⊆ θ.
Proof.
  intros W H M.
  destruct (answers_keep θ _ _ H (init_invariant p t W) (init_has_solution θ p t M)) as (σ & I & X).
  exists σ. auto using has_solution_success.
Qed.

(** The matches are the environments above an answer. *)
Theorem answers_spec p t o θ :
  wf p = true -> init p t ⇓ o -> ([] ⊢ p @ θ ≈ t <-> exists σ, In σ o /\ theta σ ⊆ θ).
Proof.
  intros W H. split; [now apply answers_complete |]. intros (σ & I & L).
  eapply answers_sound; eauto.
Qed.

(** On the names that are definitely bound, an answer is exact. *)
Theorem answers_exact p t o θ :
  wf p = true -> init p t ⇓ o -> [] ⊢ p @ θ ≈ t ->
  exists σ, In σ o /\ theta σ ⊆ θ /\
    forall x, In x (bound_after [] [] p) -> theta σ x = θ x /\ θ x <> None.
Proof.
  intros W H M. destruct (answers_complete p t o θ W H M) as (σ & I & L).
  exists σ. repeat split; auto.
  - assert (B : theta σ x <> None).
    { eapply wf_bound_after_sound; eauto. eapply answers_sound; eauto using extends_refl. }
    destruct (theta σ x) as [v |] eqn:E; [| congruence]. symmetry. now apply L.
  - eapply wf_bound_after_sound; eauto.
Qed.
End Enumeration.
