(** * Well-formedness: every name is bound before it is read

    [bound_after R D p] are the names that are definitely bound after [p], if those in [D] are bound
    before; [checks R D p] is the check.  The rule for [μ] is assume-guarantee: at recursive calls the
    body may rely on its own contract, which is sound because a match has a finite derivation. *)

From Coq Require Import List Bool PeanoNat.
Import ListNotations.
From PyPM Require Import Names Values Terms Guards Patterns Declarative.

Section WellFormed.
Context {Δ : Domain}.

Fixpoint bound_after (R : recursion) (D : list name) (p : pattern) : list name :=
  match p with
  | PVar x => x :: D
  | POp _ ps => thread (bound_after R) D ps
  | PFun F ps => thread (bound_after R) (F :: D) ps
  | PAlt p q => inter (bound_after R D p) (bound_after R D q)
  | PEx x p => D ++ without x (bound_after R (without x D) p)
  | PGuard p _ => bound_after R D p
  | PLet p x _ => x :: bound_after R D p
  | PMatch p p' _ => bound_after R (bound_after R D p) p'
  | PMu xs _ outs _ _ ys => D ++ arguments xs outs ys
  | PCall i ys =>
      match nth_error R i with
      | Some d => D ++ arguments (d_params d) (d_out d) ys
      | None => D
      end
  end.

(** The arguments for the parameters [ins] are bound. *)
Definition inputs_bound (xs ins ys D : list name) : bool :=
  forallb (fun x => match arg xs ys x with Some y => mem y D | None => false end) ins.

Fixpoint checks (R : recursion) (D : list name) (p : pattern) : bool :=
  match p with
  | PVar _ => true
  | POp _ ps => thread_check (bound_after R) (checks R) D ps
  | PFun F ps => thread_check (bound_after R) (checks R) (F :: D) ps
  | PAlt p q => checks R D p && checks R D q
  | PEx x p => checks R (without x D) p && mem x (bound_after R (without x D) p)
  | PGuard p g => checks R D p && subset (guard_vars g) (bound_after R D p)
  | PLet p _ e => checks R D p && subset (expr_vars e) (bound_after R D p)
  | PMatch p p' x => checks R D p && mem x (bound_after R D p) && checks R (bound_after R D p) p'
  | PMu xs ins outs small b ys =>
      let R' := Def xs ins outs small b :: R in
      inputs_bound xs ins ys D && checks R' ins b && subset outs (bound_after R' ins b)
  | PCall i ys =>
      match nth_error R i with
      | Some d => inputs_bound (d_params d) (d_in d) ys D
      | None => true
      end
  end.

Definition wf (p : pattern) : bool := checks [] [] p.

(** Every enclosing definition keeps its contract. *)
Fixpoint checks_rec (R : recursion) : Prop :=
  match R with
  | [] => True
  | d :: R' =>
      checks R (d_in d) (d_body d) = true /\ incl (d_out d) (bound_after R (d_in d) (d_body d)) /\
      checks_rec R'
  end.

Lemma checks_rec_skipn i : forall R, checks_rec R -> checks_rec (skipn i R).
Proof. induction i as [| i IH]; intros [| d R] H; simpl; auto. apply IH. apply H. Qed.

Lemma checks_mu R D xs ins outs small b ys :
  checks R D (PMu xs ins outs small b ys) = true -> checks_rec R ->
  inputs_bound xs ins ys D = true /\ checks_rec (Def xs ins outs small b :: R).
Proof.
  simpl. rewrite !andb_true_iff, subset_spec. tauto.
Qed.

Lemma checks_call R D i ys d R' :
  checks R D (PCall i ys) = true -> skipn i R = d :: R' -> checks_rec R ->
  inputs_bound (d_params d) (d_in d) ys D = true /\ checks_rec (d :: R').
Proof.
  cbn [checks]. intros O E H. rewrite (skipn_nth_error _ _ _ _ E) in O.
  split; [exact O |]. rewrite <- E. now apply checks_rec_skipn.
Qed.

Lemma inputs_bound_spec xs ins ys D x :
  inputs_bound xs ins ys D = true -> In x ins -> exists y, arg xs ys x = Some y /\ In y D.
Proof.
  unfold inputs_bound. rewrite forallb_forall. intros H I. specialize (H x I).
  destruct (arg xs ys x) as [y |]; [| discriminate]. exists y. split; auto. now apply mem_spec.
Qed.

(** ** [bound_after] only adds names *)

Lemma bound_after_thread_extensive R ps :
  Forall (fun p => forall R D, incl D (bound_after R D p)) ps ->
  forall D, incl D (thread (bound_after R) D ps).
Proof.
  induction 1 as [| p ps Hp _ IH]; intros D0; simpl; [apply incl_refl |].
  eapply incl_tran; [apply Hp | apply IH].
Qed.

Lemma bound_after_extensive p : forall R D, incl D (bound_after R D p).
Proof.
  induction p as [x | f ps IH | F ps IH | p q IHp IHq | x p IH | p g IH | p x e IH
                 | p p' x IHp IHp' | xs ins outs small b ys IH | i ys] using pattern_ind';
    intros R D0; simpl.
  - apply incl_tl, incl_refl.
  - now apply bound_after_thread_extensive.
  - eapply incl_tran; [apply incl_tl, incl_refl | now apply bound_after_thread_extensive].
  - intros y I. apply inter_spec. split; [now apply IHp | now apply IHq].
  - apply incl_appl, incl_refl.
  - apply IH.
  - apply incl_tl, IH.
  - eapply incl_tran; [apply IHp | apply IHp'].
  - apply incl_appl, incl_refl.
  - destruct (nth_error R i); [apply incl_appl |]; apply incl_refl.
Qed.

(** ** [bound_after] is sound: a match binds the names in it *)

Context {T : Type} {Σ : Structure T}.

Definition all_bound (θ : env T) (D : list name) : Prop := forall x, In x D -> θ x <> None.

Lemma all_bound_cons θ x D : θ x <> None -> all_bound θ D -> all_bound θ (x :: D).
Proof. intros H B y [<- | I]; auto. Qed.

Lemma all_bound_callenv θ xs ins ys D :
  inputs_bound xs ins ys D = true -> all_bound θ D -> all_bound (callenv xs ys θ) ins.
Proof.
  intros H B x I. destruct (inputs_bound_spec _ _ _ _ _ H I) as (y & E & Iy).
  unfold callenv. rewrite E. auto.
Qed.

Lemma all_bound_arguments θ xs outs ys D :
  all_bound θ D -> all_bound (callenv xs ys θ) outs -> all_bound θ (D ++ arguments xs outs ys).
Proof.
  intros B B' y I. apply in_app_or in I as [I | I]; auto.
  apply arguments_spec in I as (x & I & E). specialize (B' x I). unfold callenv in B'.
  now rewrite E in B'.
Qed.

(** The environment inside a binder, and back outside. *)
Lemma all_bound_update θ x v D : all_bound θ D -> all_bound (update θ x v) (without x D).
Proof. intros B y I. apply without_spec in I as [I N]. rewrite update_other; auto. Qed.

Lemma all_bound_downdate θ x v D : all_bound (update θ x v) D -> all_bound θ (without x D).
Proof.
  intros B y I. apply without_spec in I as [I N]. specialize (B y I). now rewrite update_other in B.
Qed.

Ltac split_checks :=
  repeat match goal with
  | H : _ && _ = true |- _ => apply andb_prop in H as [? ?]
  end.

Lemma bound_after_sound_mut :
  (forall R p θ t, R ⊢ p @ θ ≈ t ->
     forall D, checks_rec R -> checks R D p = true -> all_bound θ D ->
     all_bound θ (bound_after R D p)) /\
  (forall R ps θ ts, R ⊢ ps @ θ ≈* ts ->
     forall D, checks_rec R -> thread_check (bound_after R) (checks R) D ps = true -> all_bound θ D ->
     all_bound θ (thread (bound_after R) D ps)).
Proof.
  apply (matches_mutind
    (fun R p θ t _ => forall D, checks_rec R -> checks R D p = true ->
       all_bound θ D -> all_bound θ (bound_after R D p))
    (fun R ps θ ts _ => forall D, checks_rec R ->
       thread_check (bound_after R) (checks R) D ps = true ->
       all_bound θ D -> all_bound θ (thread (bound_after R) D ps))).
  - (* var *) intros. apply all_bound_cons; auto. congruence.
  - (* op *) intros. simpl in *. auto.
  - (* fun *) intros. simpl in *. apply H; auto. apply all_bound_cons; auto. congruence.
  - (* altL *) intros. simpl in *. split_checks. intros y I. apply inter_spec in I as [I _].
    eapply H; eauto.
  - (* altR *) intros. simpl in *. split_checks. intros y I. apply inter_spec in I as [_ I].
    eapply H; eauto.
  - (* ex *) intros. simpl in *. split_checks. intros y I. apply in_app_or in I as [I | I]; auto.
    revert y I. eapply all_bound_downdate. apply H; eauto using all_bound_update.
  - (* guard *) intros. simpl in *. split_checks. auto.
  - (* let *) intros. simpl in *. split_checks. apply all_bound_cons; auto. congruence.
  - (* match *) intros. simpl in *. split_checks. auto.
  - (* mu *) intros R xs ins outs small b ys θ t _ IH D0 HR O B.
    destruct (checks_mu _ _ _ _ _ _ _ _ O HR) as [Hi HR']. apply all_bound_arguments; auto.
    destruct HR' as (Hb & Ho & ?). intros x I. apply (IH ins); auto.
    { split; auto. } eapply all_bound_callenv; eauto.
  - (* call *) intros R i d R' ys θ t E _ IH D0 HR O B.
    destruct (checks_call _ _ _ _ _ _ O E HR) as [Hi HR'].
    simpl. rewrite (skipn_nth_error _ _ _ _ E). apply all_bound_arguments; auto.
    destruct HR' as (Hb & Ho & ?). intros x I. apply (IH (d_in d)); auto.
    { split; auto. } eapply all_bound_callenv; eauto.
  - (* nil *) intros. simpl. auto.
  - (* cons *) intros. simpl in *. split_checks. auto.
Qed.

Theorem bound_after_sound R p θ t D :
  R ⊢ p @ θ ≈ t -> checks_rec R -> checks R D p = true -> all_bound θ D ->
  all_bound θ (bound_after R D p).
Proof. intros H. apply (proj1 bound_after_sound_mut _ _ _ _ H). Qed.

Corollary wf_bound_after_sound p θ t x :
  wf p = true -> [] ⊢ p @ θ ≈ t -> In x (bound_after [] [] p) -> θ x <> None.
Proof.
  intros W H. apply (bound_after_sound _ _ _ _ _ H I W). intros y [].
Qed.
End WellFormed.
