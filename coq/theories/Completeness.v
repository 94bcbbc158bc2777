(** * Completeness of the machine (T3)

    A solution of a well-formed configuration survives in one of the configurations that it becomes.
    The solution changes at one place only: where the step allocates a location for a local name, it
    takes the witness of the declarative rule for [∃].  So a state with a solution never fails. *)

From Coq Require Import List Bool PeanoNat Lia.
Import ListNotations.
From PyPM Require Import Names Values Terms Guards Patterns Declarative Stores Machine WellFormed
  Soundness Invariant.

Section Completeness.
Context {Δ : Domain} {T : Type} {Σ : Structure T}.

(** ** Solutions that agree on the allocated locations *)

Definition agree (n : nat) (s s' : @assignment Δ T) : Prop :=
  forall l, (forall m, l = LFresh m -> m < n) -> s l = s' l.

Lemma agree_refl n s : agree n s s.
Proof. intros l _. reflexivity. Qed.

Lemma agree_compose n s s' ρ x : locs_below n ρ -> agree n s s' -> (s ∘ ρ) x = (s' ∘ ρ) x.
Proof.
  intros Hρ A. unfold compose. destruct (ρ x) as [l |] eqn:E; auto.
  apply A. intros m ->. exact (Hρ _ _ E).
Qed.

Lemma agree_holds n s s' (a : action T) :
  action_below n a -> agree n s s' -> holds s a -> holds s' a.
Proof.
  intros H A. pose proof (fun ρ Hρ x => agree_compose n s s' ρ x Hρ A) as E.
  destruct a as [R ρ p t | ρ g | ρ x e | l | R ρ p x]; simpl in *.
  - apply matches_ext. now apply E.
  - intros <-. symmetry. apply geval_agree. intros x _. now apply E.
  - intros (v & Hv & Hx). exists v. rewrite <- (E ρ H x). split; auto.
    rewrite <- Hv. symmetry. apply eval_agree. intros y _. now apply E.
  - intros [v Hv]. exists v. rewrite <- Hv. symmetry. apply A. intros m ->. exact H.
  - intros (t & Hx & Hp). exists t. rewrite <- (E ρ H x). split; auto.
    eapply matches_ext; [| exact Hp]. now apply E.
Qed.

Lemma agree_actions n s s' (k : list (action T)) :
  Forall (action_below n) k -> agree n s s' -> Forall (holds s) k -> Forall (holds s') k.
Proof.
  rewrite !Forall_forall. intros H A F a I. eapply agree_holds; eauto.
Qed.

(** The solution after the allocation of a location with a witness. *)
Lemma agree_witness n s v :
  agree n s (fun l => if loc_eqb l (LFresh n) then Some v else s l).
Proof.
  intros l H. destruct (loc_eqb l (LFresh n)) eqn:Q; auto. apply loc_eqb_spec in Q.
  specialize (H _ Q). lia.
Qed.

(** ** One step forwards *)

(** What it is for a configuration to keep a solution. *)
Definition survives (s : assignment) (c : config T) : Prop :=
  exists c' s', c ⟶ c' /\ solves s' c' /\ agree (next (fst c)) s s'.

Lemma survives_same s c c' : c ⟶ c' -> solves s c' -> survives s c.
Proof. intros X Sol. exists c', s. auto using agree_refl. Qed.

Lemma ex_survives s σ R ρ x p t k v :
  below (σ, AMatch R ρ (PEx x p) t :: k) -> solves s (σ, k) ->
  R ⊢ p @ update (s ∘ ρ) x v ≈ t -> survives s (σ, AMatch R ρ (PEx x p) t :: k).
Proof.
  intros [Hσ Hk] [L F] M. simpl in *. apply Forall_cons_iff in Hk as [Hρ Hk]. simpl in Hρ.
  set (l := LFresh (next σ)).
  set (s' := fun l' => if loc_eqb l' l then Some v else s l').
  pose proof (agree_witness (next σ) s v) as A. fold l s' in A.
  assert (s' l = Some v) as El by (unfold s'; now rewrite loc_eqb_refl).
  exists (alloc σ, AMatch R (update ρ x l) p t :: ACheck l :: k), s'.
  split; [now apply B_ex |]. split; [| exact A]. rewrite !solves_cons. repeat split; simpl.
  - eapply matches_ext; [| exact M]. intros y. rewrite (compose_update s' ρ x l v El).
    unfold update. destruct (Nat.eqb y x); auto. now apply agree_compose with (next σ).
  - now exists v.
  - intros l' w G. rewrite <- A; [now apply L |]. intros m ->. now apply Hσ in G.
  - now apply agree_actions with (next σ) s.
Qed.

Lemma match_survives s σ R ρ p t k :
  below (σ, AMatch R ρ p t :: k) -> solves s (σ, AMatch R ρ p t :: k) ->
  survives s (σ, AMatch R ρ p t :: k).
Proof.
  intros Hb Sol. apply solves_cons in Sol as [M Sol]. simpl in M.
  remember (s ∘ ρ) as θ eqn:Eθ. destruct M; subst θ.
  - (* var *) destruct (bind_name_complete σ ρ x (VTerm t) s) as (σ' & B & L); auto.
    { apply Sol. } eapply survives_same; [apply B_var, B |]. split; [exact L | apply Sol].
  - (* op *) pose proof (matches_all_length _ _ _ _ H0) as Len.
    eapply survives_same; [econstructor; eauto |]. apply solves_children; auto.
  - (* fun *) pose proof (matches_all_length _ _ _ _ H1) as Len.
    destruct (bind_name_complete σ ρ F (VOp f) s) as (σ' & B & L); auto. { apply Sol. }
    eapply survives_same; [econstructor; eauto |]. apply solves_children; auto.
    split; auto. split; [exact L | apply Sol].
  - (* altL *) eapply survives_same; [apply B_alt_l |]. now apply solves_cons.
  - (* altR *) eapply survives_same; [apply B_alt_r |]. now apply solves_cons.
  - (* ex *) eapply ex_survives; eauto.
  - (* guard *) eapply survives_same; [constructor |]. now rewrite !solves_cons.
  - (* let *) eapply survives_same; [constructor |]. rewrite !solves_cons. simpl. eauto.
  - (* match *) eapply survives_same; [constructor |]. rewrite !solves_cons. simpl. eauto.
  - (* mu *) eapply survives_same; [constructor |]. rewrite solves_cons. split; auto.
    now apply matches_callenv.
  - (* call *) eapply survives_same; [econstructor; eauto |]. rewrite solves_cons. split; auto.
    now apply matches_callenv.
Qed.

(** Names that are bound in the store have there the value that the solution gives them. *)
Lemma known_names s (σ : store T) ρ D x :
  get σ ⊆ s -> bound_in ρ D (dom σ) -> In x D -> (get σ ∘ ρ) x = (s ∘ ρ) x.
Proof.
  intros L H I. unfold compose. destruct (ρ x) as [l |] eqn:E; auto.
  destruct (H _ _ I E) as [v G]. rewrite G. symmetry. auto.
Qed.

(** The other actions need well-formedness: they read the store. *)
Lemma becomes_complete s σ a k :
  sound_config (σ, a :: k) -> solves s (σ, a :: k) -> survives s (σ, a :: k).
Proof.
  intros [Hb Hw] Sol. destruct a as [R ρ p t | ρ g | ρ x e | l | R ρ p x];
    [now apply match_survives | | | |];
    apply solves_cons in Sol as [H Sol]; simpl in H, Hw; pose proof (proj1 Sol) as L; simpl in L.
  - (* test *) destruct Hw as [Hg _]. apply survives_same with (σ, k); auto. constructor.
    rewrite <- H. apply geval_agree. intros x I. eapply known_names; eauto.
  - (* assign *) destruct Hw as [He _]. destruct H as (v & Hv & Hx).
    destruct (bind_name_complete σ ρ x v s) as (σ' & B & L'); auto.
    apply survives_same with (σ', k); [| split; [exact L' | apply Sol]].
    econstructor; [| exact B]. rewrite <- Hv. apply eval_agree. intros y I.
    eapply known_names; eauto.
  - (* check *) destruct Hw as [[v G] _]. apply survives_same with (σ, k); auto.
    now apply B_check with v.
  - (* constraint *) destruct Hw as (D & Hx & (HB & _ & _) & _). destruct H as (t & Ht & M).
    apply survives_same with (σ, AMatch R ρ p t :: k); [| now apply solves_cons].
    constructor. rewrite <- Ht. eapply known_names; eauto.
Qed.

(** ** Whole runs *)

(** [c] has a solution that gives the free names the values that [θ] gives them. *)
Definition has_solution (θ : env T) (c : config T) : Prop :=
  exists s, solves s c /\ forall x, s (LFree x) = θ x.

Lemma expand_complete θ c :
  snd c <> [] -> sound_config c -> has_solution θ c -> Exists (has_solution θ) (expand c).
Proof.
  destruct c as [σ [| a k]]; [simpl; congruence |]. intros _ W (s & Sol & E).
  destruct (becomes_complete s σ a k W Sol) as (c' & s' & X & Sol' & A).
  apply Exists_exists. exists c'. split; [now apply expand_spec |]. exists s'. split; auto.
  intros x. rewrite <- E. symmetry. apply A. discriminate.
Qed.

Lemma step_complete θ st :
  status_of st = Running -> Forall sound_config st -> Exists (has_solution θ) st ->
  Exists (has_solution θ) (step st).
Proof.
  destruct st as [| [σ [| a k]] stk]; try discriminate. intros _ W X. simpl.
  apply Exists_app. inversion W; subst. inversion X; subst; auto. left.
  apply (expand_complete θ (σ, a :: k)); auto. discriminate.
Qed.

Lemma star_complete θ st st' :
  st ⟶* st' -> Forall sound_config st -> Exists (has_solution θ) st ->
  Exists (has_solution θ) st'.
Proof.
  induction 1 as [| st st1 st' [Run ->] _ IH]; auto. intros W X.
  apply IH; auto using step_invariant, step_complete.
Qed.

Lemma init_has_solution θ p t : [] ⊢ p @ θ ≈ t -> Exists (has_solution θ) (init p t).
Proof.
  intros M. left. exists (fun l => match l with LFree x => θ x | LFresh _ => None end).
  split; auto. split; [intros l v; discriminate |]. constructor; [exact M | constructor].
Qed.

Lemma has_solution_success θ σ : has_solution θ (σ, []) -> theta σ ⊆ θ.
Proof. intros (s & [L _] & E) x v G. rewrite <- E. now apply L. Qed.

(** ** T3 *)

Theorem completeness p t st :
  wf p = true -> init p t ⟶* st -> status_of st = Failure -> forall θ, ~ [] ⊢ p @ θ ≈ t.
Proof.
  intros W H F θ M. destruct st as [| [σ [| a k]] stk]; try discriminate.
  assert (X : Exists (has_solution θ) (@nil (config T))).
  { eapply star_complete; eauto using init_invariant, init_has_solution. }
  inversion X.
Qed.
End Completeness.
