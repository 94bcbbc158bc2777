(** * Soundness of the machine (T2)

    A solution of a configuration is an assignment [s] of values to locations that extends its store
    and makes each of its actions true.  If an alternative has a solution, then so has, with the same
    [s], the configuration that it comes from.  A success solves itself; hence it solves the initial
    state.  Nothing is asked of the pattern. *)

From Coq Require Import List Bool PeanoNat.
Import ListNotations.
From PyPM Require Import Names Values Terms Guards Patterns Declarative Stores Machine.

Section Soundness.
Context {Δ : Domain} {T : Type} {Σ : Structure T}.

(** ** Solutions *)

Definition assignment : Type := loc -> option (value T).

Definition holds (s : assignment) (a : action T) : Prop :=
  match a with
  | AMatch R ρ p t => R ⊢ p @ s ∘ ρ ≈ t
  | AGuard ρ g => geval (s ∘ ρ) g = Some true
  | ALet ρ x e => exists v, eval (s ∘ ρ) e = Some v /\ (s ∘ ρ) x = Some v
  | ACheck l => exists v, s l = Some v
  | AMatchC R ρ p x => exists t, (s ∘ ρ) x = Some (VTerm t) /\ R ⊢ p @ s ∘ ρ ≈ t
  end.

Definition solves (s : assignment) (c : config T) : Prop :=
  get (fst c) ⊆ s /\ Forall (holds s) (snd c).

Lemma solves_cons s σ a k : solves s (σ, a :: k) <-> holds s a /\ solves s (σ, k).
Proof. unfold solves. simpl. rewrite Forall_cons_iff. tauto. Qed.

(** A solution may be moved to a store that knows less. *)
Lemma solves_smaller s σ σ' k : get σ ⊆ get σ' -> solves s (σ', k) -> solves s (σ, k).
Proof. intros L [E F]. split; auto. exact (extends_trans _ _ _ L E). Qed.

Lemma solves_children s σ R ρ ps ts k :
  length ps = length ts ->
  solves s (σ, match_children R ρ ps ts ++ k) <-> R ⊢ ps @ s ∘ ρ ≈* ts /\ solves s (σ, k).
Proof.
  revert ts. induction ps as [| p ps IH]; intros [| t ts] L; simpl in *; try discriminate.
  - split; [intros; split; [constructor | auto] | tauto].
  - injection L as L. rewrite solves_cons, IH by auto. simpl. split.
    + intros (? & ? & ?). split; [constructor |]; auto.
    + intros [H ?]. inversion H; subst. auto.
Qed.

(** ** What the environments of a binder and of a call have to do with the one outside *)

Lemma compose_update (s : assignment) ρ x l v :
  s l = Some v -> forall y, (s ∘ update ρ x l) y = update (s ∘ ρ) x v y.
Proof. intros E y. unfold compose, update. destruct (Nat.eqb y x); auto. Qed.

Lemma holds_ex (s : assignment) R ρ x p t l v :
  s l = Some v -> R ⊢ p @ s ∘ update ρ x l ≈ t -> R ⊢ PEx x p @ s ∘ ρ ≈ t.
Proof.
  intros E H. apply M_ex with v. eapply matches_ext; [| exact H]. now apply compose_update.
Qed.

Lemma matches_callenv (s : assignment) R ρ xs ys p t :
  R ⊢ p @ s ∘ callenv xs ys ρ ≈ t <-> R ⊢ p @ callenv xs ys (s ∘ ρ) ≈ t.
Proof.
  split; apply matches_ext; intros x; [| symmetry]; apply compose_callenv.
Qed.

(** ** One step backwards *)

Lemma becomes_sound c c' s : c ⟶ c' -> solves s c' -> solves s c.
Proof.
  destruct 1; rewrite ?solves_cons; simpl.
  - (* var *) apply bind_name_sound in H as (B & L & _). intros Sol.
    split; [| eapply solves_smaller; eauto]. constructor.
    apply (compose_extends (get σ') s); [apply Sol | exact B].
  - (* op *) rewrite solves_children by auto. intros [H1 Sol]. split; auto. econstructor; eauto.
  - (* fun *) apply bind_name_sound in H1 as (B & L & _).
    rewrite solves_children by auto. intros [H1 Sol].
    split; [| eapply solves_smaller; eauto]. econstructor; eauto.
    apply (compose_extends (get σ') s); [apply Sol | exact B].
  - (* altL *) intros [H1 Sol]. split; auto. now apply M_alt_l.
  - (* altR *) intros [H1 Sol]. split; auto. now apply M_alt_r.
  - (* ex *) intros (H1 & [v E] & Sol). split; auto. eapply holds_ex; eauto.
  - (* guard *) intros (H1 & H2 & Sol). split; auto. now constructor.
  - (* let *) intros (H1 & (v & ? & ?) & Sol). split; auto. econstructor; eauto.
  - (* match *) intros (H1 & (t' & ? & ?) & Sol). split; auto. econstructor; eauto.
  - (* mu *) intros [H1 Sol]. split; auto. constructor. now apply matches_callenv.
  - (* call *) intros [H1 Sol]. split; auto. econstructor; [exact H |]. now apply matches_callenv.
  - (* test *) intros Sol. split; auto. eapply geval_mono; [| exact H].
    apply compose_extends, Sol.
  - (* assign *) apply bind_name_sound in H0 as (B & L & _). intros Sol.
    assert (L' : get σ' ⊆ s) by apply Sol.
    split; [| eapply solves_smaller; eauto]. exists v. split.
    + eapply eval_mono; [| exact H]. apply compose_extends. eapply extends_trans; eauto.
    + apply (compose_extends _ _ _ L' _ _ B).
  - (* check *) intros Sol. split; auto. exists v. now apply Sol.
  - (* constraint *) intros [H1 Sol]. split; auto. exists t. split; auto.
    apply (compose_extends (get σ) s); [apply Sol | exact H].
Qed.

Lemma step_sound st s :
  Exists (solves s) (step st) -> Exists (solves s) st.
Proof.
  destruct st as [| c stk]; auto. simpl. rewrite Exists_app. intros [H | H]; [left | now right].
  apply Exists_exists in H as (c' & I & Sol). apply expand_spec in I.
  eapply becomes_sound; eauto.
Qed.

Lemma star_sound st st' s : st ⟶* st' -> Exists (solves s) st' -> Exists (solves s) st.
Proof. induction 1 as [| st st1 st' [_ ->] _ IH]; auto. intros H. now apply step_sound, IH. Qed.

Lemma solves_success s σ : solves s (σ, []) <-> get σ ⊆ s.
Proof. unfold solves. simpl. intuition. Qed.

Lemma solves_init s p t : Exists (solves s) (init p t) -> [] ⊢ p @ s ∘ ρ0 ≈ t.
Proof. unfold init. rewrite Exists_cons, Exists_nil, solves_cons. tauto. Qed.

(** ** T2 *)

Theorem soundness p t st σ :
  init p t ⟶* st -> status_of st = Success σ -> [] ⊢ p @ theta σ ≈ t.
Proof.
  intros H E. apply (solves_init (get σ)). eapply star_sound; [exact H |].
  destruct st as [| [σ' [| a k]] stk]; try discriminate. injection E as ->.
  left. apply solves_success, extends_refl.
Qed.

Corollary soundness_above p t st σ θ :
  init p t ⟶* st -> status_of st = Success σ -> theta σ ⊆ θ -> [] ⊢ p @ θ ≈ t.
Proof. intros H E. apply matches_mono. eapply soundness; eauto. Qed.
End Soundness.
