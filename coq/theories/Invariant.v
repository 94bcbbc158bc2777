(** * Well-formed configurations

    Two invariants of the configurations that a well-formed pattern reaches.  Fresh locations are
    below the counter of the store.  And the actions still to do are well-formed in order: each finds
    bound what it reads, given what is bound now and what the actions before it will bind.  The set
    of names under which a pattern was checked is quantified existentially, action by action. *)

From Coq Require Import List Bool PeanoNat Lia.
Import ListNotations.
From PyPM Require Import Names Values Terms Guards Patterns Declarative Stores Machine WellFormed.

Section Invariant.
Context {Δ : Domain} {T : Type} {Σ : Structure T}.

(** ** Fresh locations are below the counter *)

Definition locs_below (n : nat) (ρ : locs) : Prop := forall x m, ρ x = Some (LFresh m) -> m < n.

Definition action_below (n : nat) (a : action T) : Prop :=
  match a with
  | AMatch _ ρ _ _ | AGuard ρ _ | ALet ρ _ _ | AMatchC _ ρ _ _ => locs_below n ρ
  | ACheck (LFresh m) => m < n
  | ACheck (LFree _) => True
  end.

Definition store_below (σ : store T) : Prop :=
  forall m v, get σ (LFresh m) = Some v -> m < next σ.

Definition below (c : config T) : Prop :=
  store_below (fst c) /\ Forall (action_below (next (fst c))) (snd c).

Lemma locs_below_le m n ρ : m <= n -> locs_below m ρ -> locs_below n ρ.
Proof. intros L H x i E. apply H in E. lia. Qed.

Lemma action_below_le m n a : m <= n -> action_below m a -> action_below n a.
Proof. intros L. destruct a; simpl; eauto using locs_below_le. destruct l; auto. lia. Qed.

Lemma locs_below_callenv n xs ys ρ : locs_below n ρ -> locs_below n (callenv xs ys ρ).
Proof. intros H x m. unfold callenv. destruct (arg xs ys x); [apply H | discriminate]. Qed.

Lemma locs_below_update n x ρ : locs_below n ρ -> locs_below (1 + n) (update ρ x (LFresh n)).
Proof.
  intros H y m. unfold update. destruct (Nat.eqb y x); [intros [= <-]; lia |].
  intros E. apply H in E. lia.
Qed.

Lemma children_below n R ρ ps ts k :
  locs_below n ρ -> Forall (action_below n) k ->
  Forall (action_below n) (match_children R ρ ps ts ++ k).
Proof.
  intros Hρ Hk. revert ts. induction ps as [| p ps IH]; intros [| t ts]; simpl; auto.
Qed.

Lemma bind_name_below σ ρ x v σ' :
  bind_name σ ρ x v = Some σ' -> store_below σ -> locs_below (next σ) ρ -> store_below σ'.
Proof.
  intros B Hσ Hρ. apply bind_name_loc in B as (l & E & B).
  apply bind_cases in B as [[_ ->] | [_ ->]]; auto.
  intros m w. rewrite get_set. destruct (loc_eqb (LFresh m) l) eqn:Q; [| apply Hσ].
  apply loc_eqb_spec in Q. subst. intros _. exact (Hρ _ _ E).
Qed.

Lemma becomes_below c c' : c ⟶ c' -> below c -> below c'.
Proof.
  unfold below. destruct 1; simpl; rewrite ?Forall_cons_iff; simpl; intros (Hσ & Ha & Hk);
    try match goal with
    | B : bind_name _ _ _ _ = Some _ |- _ =>
        split; [eapply bind_name_below; eauto |]; apply bind_name_sound in B as (_ & _ & ->)
    end; auto using children_below, locs_below_callenv.
  (* ex *)
  subst. repeat split.
  - intros m v G. apply Hσ in G. simpl. lia.
  - now apply locs_below_update.
  - simpl. lia.
  - eapply Forall_impl; [| exact Hk]. intros a. apply action_below_le. lia.
Qed.

(** ** Actions find bound what they read *)

(** A set of locations, and the locations of the names in [D]. *)
Definition locset : Type := loc -> Prop.
Definition image (ρ : locs) (D : list name) : locset := fun l => exists x, In x D /\ ρ x = Some l.
Definition union (B B' : locset) : locset := fun l => B l \/ B' l.

(** The names in [D], where they are mapped at all, stand at locations in [B]. *)
Definition bound_in (ρ : locs) (D : list name) (B : locset) : Prop :=
  forall x l, In x D -> ρ x = Some l -> B l.

(** The pattern is well-formed given the names in [D], and those are bound. *)
Definition ready (R : recursion) (ρ : locs) (D : list name) (p : pattern) (B : locset) : Prop :=
  bound_in ρ D B /\ checks_rec R /\ checks R D p = true.

(** [checks_actions B k]: the actions [k] are well-formed if the locations in [B] are bound. *)
Fixpoint checks_actions (B : locset) (k : list (action T)) : Prop :=
  match k with
  | [] => True
  | AMatch R ρ p t :: k =>
      exists D, ready R ρ D p B /\ checks_actions (union B (image ρ (bound_after R D p))) k
  | AGuard ρ g :: k => bound_in ρ (guard_vars g) B /\ checks_actions B k
  | ALet ρ x e :: k => bound_in ρ (expr_vars e) B /\ checks_actions (union B (image ρ [x])) k
  | ACheck l :: k => B l /\ checks_actions B k
  | AMatchC R ρ p x :: k =>
      exists D, In x D /\ ready R ρ D p B /\ checks_actions (union B (image ρ (bound_after R D p))) k
  end.

Definition dom (σ : store T) : locset := fun l => exists v, get σ l = Some v.

Definition well_formed (c : config T) : Prop := checks_actions (dom (fst c)) (snd c).

Lemma dom_extends (σ σ' : store T) l : get σ ⊆ get σ' -> dom σ l -> dom σ' l.
Proof. intros L [v E]. exists v. auto. Qed.

Lemma union_mono (B B' C : locset) :
  (forall l, B l -> B' l) -> forall l, union B C l -> union B' C l.
Proof. intros H l [? | ?]; [left | right]; auto. Qed.

Lemma ready_mono R ρ D p (B B' : locset) :
  (forall l, B l -> B' l) -> ready R ρ D p B -> ready R ρ D p B'.
Proof. intros H (HB & ? & ?). split; auto. intros x l I E. eauto. Qed.

Lemma checks_actions_mono k : forall B B' : locset,
  (forall l, B l -> B' l) -> checks_actions B k -> checks_actions B' k.
Proof.
  induction k as [| a k IH]; intros B B' H; simpl; auto. destruct a.
  - intros (D & HD & Hk). exists D. split; [eapply ready_mono; eauto |].
    exact (IH _ _ (union_mono _ _ _ H) Hk).
  - intros [Hg Hk]. split; [intros x l I E; eauto | eapply IH; eauto].
  - intros [He Hk]. split; [intros y l I E; eauto | exact (IH _ _ (union_mono _ _ _ H) Hk)].
  - intros [Hl Hk]. split; [auto | eapply IH; eauto].
  - intros (D & Hx & HD & Hk). exists D. repeat split; try apply HD; auto.
    + destruct HD as (HB & _ & _). intros y l I E. eauto.
    + exact (IH _ _ (union_mono _ _ _ H) Hk).
Qed.

Lemma bound_in_image ρ D (B : locset) : bound_in ρ D (union B (image ρ D)).
Proof. intros x l I E. right. now exists x. Qed.

(** More names are bound than were to be. *)
Lemma checks_actions_image ρ D D' (B : locset) k :
  (forall x l, In x D -> ρ x = Some l -> union B (image ρ D') l) ->
  checks_actions (union B (image ρ D)) k -> checks_actions (union B (image ρ D')) k.
Proof.
  intros H. apply checks_actions_mono. intros l [? | (x & I & E)]; [now left | eauto].
Qed.

(** Names that are bound already add nothing. *)
Lemma checks_actions_known ρ D (B : locset) k :
  bound_in ρ D B -> checks_actions (union B (image ρ D)) k -> checks_actions B k.
Proof. intros H. apply checks_actions_mono. intros l [? | (x & I & E)]; eauto. Qed.

Lemma checks_children R ρ k ps : checks_rec R -> forall ts (B : locset) D,
  length ps = length ts -> bound_in ρ D B -> thread_check (bound_after R) (checks R) D ps = true ->
  checks_actions (union B (image ρ (thread (bound_after R) D ps))) k ->
  checks_actions B (match_children R ρ ps ts ++ k).
Proof.
  intros HR. induction ps as [| p ps IH]; intros [| t ts] B D L HB O Hk; simpl in *;
    try discriminate.
  - eapply checks_actions_known; eauto.
  - apply andb_prop in O as [O1 O2]. injection L as L. exists D. repeat split; auto.
    apply IH with (bound_after R D p); auto using bound_in_image.
    eapply checks_actions_mono; [| exact Hk]. intros l [? | ?]; [left; now left | now right].
Qed.

(** After binding a name its location is in the domain of the store. *)
Lemma bound_in_cons (σ σ' : store T) ρ x v D :
  bind_name σ ρ x v = Some σ' -> bound_in ρ D (dom σ) -> bound_in ρ (x :: D) (dom σ').
Proof.
  intros B H. apply bind_name_sound in B as (B & L & _). intros y l [<- | I] E.
  - unfold compose in B. rewrite E in B. now exists v.
  - eapply dom_extends; eauto.
Qed.

(** Entering the body of a definition: its contract says what the caller may rely on. *)
Lemma checks_actions_enter d R ρ ys t k D (B : locset) :
  checks_rec (d :: R) -> bound_in ρ D B -> inputs_bound (d_params d) (d_in d) ys D = true ->
  checks_actions (union B (image ρ (D ++ arguments (d_params d) (d_out d) ys))) k ->
  checks_actions B (AMatch (d :: R) (callenv (d_params d) ys ρ) (d_body d) t :: k).
Proof.
  intros HR HB HI Hk. exists (d_in d). repeat split; try apply HR.
  - intros x l I E. destruct (inputs_bound_spec _ _ _ _ _ HI I) as (y & Ey & Iy).
    unfold callenv in E. rewrite Ey in E. eauto.
  - destruct HR as (_ & Ho & _).
    eapply checks_actions_mono; [| exact Hk]. intros l [? | (y & I & E)]; [now left |].
    apply in_app_or in I as [I | I]; [left; eauto |].
    apply arguments_spec in I as (x & I & Ex). right. exists x. split; auto.
    unfold callenv. now rewrite Ex.
Qed.

(** Entering a binder: the local name is unbound inside, and gone outside. *)
Lemma checks_actions_ex R ρ x p t k D l (B : locset) :
  ready R ρ D (PEx x p) B -> checks_actions (union B (image ρ (bound_after R D (PEx x p)))) k ->
  checks_actions B (AMatch R (update ρ x l) p t :: ACheck l :: k).
Proof.
  intros (HB & HR & O) Hk. simpl in O. apply andb_prop in O as [O Hx]. apply mem_spec in Hx.
  exists (without x D). repeat split; auto.
  - intros y l' I E. apply without_spec in I as [I N]. rewrite update_other in E by auto. eauto.
  - right. exists x. split; auto. apply update_same.
  - eapply checks_actions_mono; [| exact Hk]. intros l' [? | (y & I & E)]; [now left |].
    simpl in I. apply in_app_or in I as [I | I]; [left; eauto |].
    apply without_spec in I as [I N]. right. exists y. split; auto. now rewrite update_other.
Qed.

(** The steps that match a pattern preserve well-formedness. *)
Lemma match_well_formed σ R ρ p t k c' :
  (σ, AMatch R ρ p t :: k) ⟶ c' -> well_formed (σ, AMatch R ρ p t :: k) -> well_formed c'.
Proof.
  unfold well_formed. intros X (D & HD & Hk). simpl in HD, Hk |- *.
  inversion X; subst; clear X; simpl.
  - (* var *) apply (checks_actions_known ρ (x :: D)).
    { eapply bound_in_cons; [eassumption | apply HD]. }
    eapply checks_actions_mono; [| exact Hk]. apply union_mono. intros l. apply dom_extends.
    eapply bind_name_sound; eassumption.
  - (* op *) destruct HD as (HB & HR & O). now apply checks_children with D.
  - (* fun *) destruct HD as (HB & HR & O). apply checks_children with (F :: D); auto.
    { eapply bound_in_cons; eassumption. }
    eapply checks_actions_mono; [| exact Hk]. apply union_mono. intros l. apply dom_extends.
    eapply bind_name_sound; eassumption.
  - (* altL *) destruct HD as (HB & HR & O). simpl in O. apply andb_prop in O as [O1 O2].
    exists D. repeat split; auto. eapply checks_actions_image; [| exact Hk].
    intros y l I E. apply inter_spec in I as [I _]. right. now exists y.
  - (* altR *) destruct HD as (HB & HR & O). simpl in O. apply andb_prop in O as [O1 O2].
    exists D. repeat split; auto. eapply checks_actions_image; [| exact Hk].
    intros y l I E. apply inter_spec in I as [_ I]. right. now exists y.
  - (* ex *) exact (checks_actions_ex R ρ x p0 t k D _ _ HD Hk).
  - (* guard *) destruct HD as (HB & HR & O). simpl in O. apply andb_prop in O as [O Hg].
    apply subset_spec in Hg. exists D. repeat split; auto.
    intros x l I E. right. exists x. auto.
  - (* let *) destruct HD as (HB & HR & O). simpl in O. apply andb_prop in O as [O He].
    apply subset_spec in He. exists D. repeat split; auto.
    { intros y l I E. right. exists y. auto. }
    eapply checks_actions_mono; [| exact Hk]. intros l [? | (y & [<- | I] & E)].
    + left. now left.
    + right. exists x. simpl. auto.
    + left. right. now exists y.
  - (* match *) destruct HD as (HB & HR & O). simpl in O.
    apply andb_prop in O as [O O']. apply andb_prop in O as [O Hx]. apply mem_spec in Hx.
    exists D. repeat split; auto. exists (bound_after R D p0). repeat split; auto using bound_in_image.
    eapply checks_actions_mono; [| exact Hk]. intros l [? | ?]; [left; now left | now right].
  - (* mu *) destruct HD as (HB & HR & O). destruct (checks_mu _ _ _ _ _ _ _ _ O HR) as [HI HR'].
    exact (checks_actions_enter (Def xs ins outs small b) R ρ ys t k D _ HR' HB HI Hk).
  - (* call *) destruct HD as (HB & HR & O).
    destruct (checks_call _ _ _ _ _ _ O ltac:(eassumption) HR) as [HI HR'].
    apply (checks_actions_enter d R' ρ ys t k D _ HR' HB HI).
    simpl in Hk. erewrite skipn_nth_error in Hk by eassumption. exact Hk.
Qed.

Lemma becomes_well_formed c c' : c ⟶ c' -> well_formed c -> well_formed c'.
Proof.
  destruct c as [σ [| a k]]; [inversion 1 |]. destruct a; [apply match_well_formed | | | |];
    unfold well_formed; intros X W; inversion X; subst; simpl in W |- *.
  - (* test *) apply W.
  - (* assign *) destruct W as [He Hk]. apply (checks_actions_known ρ [x]).
    { eapply bound_in_cons; [eassumption |]. intros y l []. }
    eapply checks_actions_mono; [| exact Hk]. apply union_mono. intros l. apply dom_extends.
    eapply bind_name_sound; eassumption.
  - (* check *) apply W.
  - (* constraint *) destruct W as (D & Hx & HD & Hk). exists D. auto.
Qed.

(** ** Both invariants, for states *)

Definition sound_config (c : config T) : Prop := below c /\ well_formed c.

Lemma step_invariant st : Forall sound_config st -> Forall sound_config (step st).
Proof.
  destruct st as [| c stk]; auto. simpl. intros H. inversion H as [| ? ? [Hb Hw] Hs]; subst.
  apply Forall_app. split; auto. apply Forall_forall. intros c' I. apply expand_spec in I.
  split; [eapply becomes_below | eapply becomes_well_formed]; eauto.
Qed.

Lemma init_invariant p t : wf p = true -> Forall sound_config (init p t).
Proof.
  intros W. constructor; [| constructor]. split; [split |].
  - intros m v. discriminate.
  - repeat constructor. intros x m. discriminate.
  - exists []. repeat split; auto. intros x l [].
Qed.
End Invariant.
