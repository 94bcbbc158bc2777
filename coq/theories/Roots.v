(** * Several roots

    A pattern that describes several outputs of one region is a list of patterns, matched against a
    list of terms under one environment.  To the machine these are the children of no operator; what is
    proved of one root carries over. *)

From Coq Require Import List Bool PeanoNat Lia.
Import ListNotations.
From PyPM Require Import Names Values Terms Guards Patterns Declarative Stores Machine WellFormed
  Guarded Soundness Invariant Completeness Enumeration Termination.

Section Roots.
Context {Δ : Domain} {T : Type} {Σ : Structure T}.

(** The roots are matched in order, from an empty store. *)
Definition init_roots (ps : list pattern) (ts : list T) : state T :=
  [(empty, match_children [] ρ0 ps ts)].

(** Names bound by earlier roots are bound in later ones. *)
Definition wf_roots (ps : list pattern) : bool := thread_check (bound_after []) (checks []) [] ps.

(** Each root is guarded by itself. *)
Definition guarded_roots (ps : list pattern) : bool := forallb guarded ps.

Lemma solves_roots s ps ts :
  length ps = length ts ->
  solves s (empty, match_children [] ρ0 ps ts) <-> [] ⊢ ps @ s ∘ ρ0 ≈* ts.
Proof.
  intros L. rewrite <- (app_nil_r (match_children _ _ _ _)), solves_children by exact L.
  rewrite solves_success. split; [tauto |]. intros M. split; auto. intros l v E. discriminate.
Qed.

Lemma matches_all_mono R ps θ θ' (ts : list T) :
  R ⊢ ps @ θ ≈* ts -> θ ⊆ θ' -> R ⊢ ps @ θ' ≈* ts.
Proof. intros H. now apply (proj2 matches_mono_mut). Qed.

(** ** Soundness *)

Theorem roots_sound ps ts st σ θ :
  length ps = length ts -> init_roots ps ts ⟶* st -> status_of st = Success σ ->
  theta σ ⊆ θ -> [] ⊢ ps @ θ ≈* ts.
Proof.
  intros L H E. apply matches_all_mono. apply (solves_roots (get σ)); auto.
  assert (X : Exists (solves (get σ)) (init_roots ps ts)).
  { eapply star_sound; [exact H |]. destruct st as [| [σ' [| a k]] stk]; try discriminate.
    injection E as ->. left. apply solves_success, extends_refl. }
  inversion X as [? ? Sol | ? ? Y]; subst; [exact Sol | inversion Y].
Qed.

(** ** Completeness *)

Lemma init_roots_invariant ps ts :
  length ps = length ts -> wf_roots ps = true -> Forall sound_config (init_roots ps ts).
Proof.
  intros L W. constructor; [| constructor]. unfold below, well_formed. simpl. split; [split |].
  - intros m v. discriminate.
  - rewrite <- (app_nil_r (match_children _ _ _ _)). apply children_below; auto.
    intros x m. discriminate.
  - rewrite <- (app_nil_r (match_children _ _ _ _)).
    apply checks_children with []; simpl; auto. intros x l [].
Qed.

Lemma init_roots_solution θ ps ts :
  [] ⊢ ps @ θ ≈* ts -> Exists (has_solution θ) (init_roots ps ts).
Proof.
  intros M. left. exists (fun l => match l with LFree x => θ x | LFresh _ => None end).
  split; auto. apply solves_roots; [| exact M]. eapply matches_all_length; eauto.
Qed.

Theorem roots_complete ps ts st :
  length ps = length ts -> wf_roots ps = true -> init_roots ps ts ⟶* st ->
  status_of st = Failure -> forall θ, ~ [] ⊢ ps @ θ ≈* ts.
Proof.
  intros L W H F θ M. destruct st as [| [σ [| a k]] stk]; try discriminate.
  assert (X : Exists (has_solution θ) (@nil (config T))).
  { eapply star_complete; eauto using init_roots_invariant, init_roots_solution. }
  inversion X.
Qed.

(** ** Enumeration *)

Theorem roots_answers_sound ps ts o σ θ :
  length ps = length ts -> init_roots ps ts ⇓ o -> In σ o -> theta σ ⊆ θ -> [] ⊢ ps @ θ ≈* ts.
Proof.
  intros L H I. apply matches_all_mono. apply (solves_roots (get σ)); auto.
  pose proof (answers_solve _ _ H σ I) as X.
  inversion X as [? ? Sol | ? ? Y]; subst; [exact Sol | inversion Y].
Qed.

Theorem roots_answers ps ts o θ :
  length ps = length ts -> wf_roots ps = true -> init_roots ps ts ⇓ o ->
  ([] ⊢ ps @ θ ≈* ts <-> exists σ, In σ o /\ theta σ ⊆ θ).
Proof.
  intros L W H. split.
  - intros M.
    destruct (answers_keep θ _ _ H (init_roots_invariant ps ts L W) (init_roots_solution _ _ _ M))
      as (σ & I & X).
    exists σ. auto using has_solution_success.
  - intros (σ & I & E). eapply roots_answers_sound; eauto.
Qed.

(** One root is the pattern alone. *)
Theorem roots_one p t : init_roots [p] [t] = init p t /\ wf_roots [p] = wf p.
Proof. split; [reflexivity |]. apply andb_true_r. Qed.

(** ** Termination *)

Context {Z : Sized T}.

Lemma roots_terminating ps :
  guarded_roots ps = true -> forall ts σ, terminating (σ, match_children [] ρ0 ps ts).
Proof.
  intros G. induction ps as [| p ps IH]; intros [| t ts] σ; simpl;
    try apply terminating_success.
  apply andb_prop in G as [Gp G].
  apply (all_terminate p [] ρ0 t σ _ (size t) [] no_sizes Weak [] []); auto.
  - split; [simpl; lia | |]; constructor.
  - intros i d R' n E. destruct i; discriminate.
  - apply sizes_ok_none.
Qed.

Theorem roots_termination ps ts : guarded_roots ps = true -> exists o, init_roots ps ts ⇓ o.
Proof.
  intros G. apply terminating_answers; [now apply roots_terminating |]. exists []. constructor.
Qed.
End Roots.
