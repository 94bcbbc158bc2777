(** * Well-formedness: every name is bound before it is read

    [db R D p] are the names that are definitely bound after [p], if those in [D] are bound before;
    [ok R D p] is the check.  The rule for [μ] is assume-guarantee: at recursive calls the body may
    rely on its own contract, which is sound because a match has a finite derivation. *)

From Coq Require Import List Bool PeanoNat.
Import ListNotations.
From PyPM Require Import Names Values Terms Guards Patterns Declarative.

Section WellFormed.
Context {Δ : Domain}.

Fixpoint db (R : recursion) (D : list name) (p : pattern) : list name :=
  match p with
  | PVar x => x :: D
  | POp _ ps => thread (db R) D ps
  | PFun F ps => thread (db R) (F :: D) ps
  | PAlt p q => inter (db R D p) (db R D q)
  | PEx x p => D ++ without x (db R (without x D) p)
  | PGuard p _ => db R D p
  | PLet p x _ => x :: db R D p
  | PMatch p p' _ => db R (db R D p) p'
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

Fixpoint ok (R : recursion) (D : list name) (p : pattern) : bool :=
  match p with
  | PVar _ => true
  | POp _ ps => thread_check (db R) (ok R) D ps
  | PFun F ps => thread_check (db R) (ok R) (F :: D) ps
  | PAlt p q => ok R D p && ok R D q
  | PEx x p => ok R (without x D) p && mem x (db R (without x D) p)
  | PGuard p g => ok R D p && subset (guard_vars g) (db R D p)
  | PLet p _ e => ok R D p && subset (expr_vars e) (db R D p)
  | PMatch p p' x => ok R D p && mem x (db R D p) && ok R (db R D p) p'
  | PMu xs ins outs small b ys =>
      let R' := Def xs ins outs small b :: R in
      inputs_bound xs ins ys D && ok R' ins b && subset outs (db R' ins b)
  | PCall i ys =>
      match nth_error R i with
      | Some d => inputs_bound (d_params d) (d_in d) ys D
      | None => true
      end
  end.

Definition wf (p : pattern) : bool := ok [] [] p.

(** Every enclosing definition keeps its contract. *)
Fixpoint ok_rec (R : recursion) : Prop :=
  match R with
  | [] => True
  | d :: R' =>
      ok R (d_in d) (d_body d) = true /\ incl (d_out d) (db R (d_in d) (d_body d)) /\ ok_rec R'
  end.

Lemma ok_rec_skipn i : forall R, ok_rec R -> ok_rec (skipn i R).
Proof. induction i as [| i IH]; intros [| d R] H; simpl; auto. apply IH. apply H. Qed.

Lemma ok_mu R D xs ins outs small b ys :
  ok R D (PMu xs ins outs small b ys) = true -> ok_rec R ->
  inputs_bound xs ins ys D = true /\ ok_rec (Def xs ins outs small b :: R).
Proof.
  simpl. rewrite !andb_true_iff, subset_spec. tauto.
Qed.

Lemma ok_call R D i ys d R' :
  ok R D (PCall i ys) = true -> skipn i R = d :: R' -> ok_rec R ->
  inputs_bound (d_params d) (d_in d) ys D = true /\ ok_rec (d :: R').
Proof.
  cbn [ok]. intros O E H. rewrite (skipn_nth_error _ _ _ _ E) in O.
  split; [exact O |]. rewrite <- E. now apply ok_rec_skipn.
Qed.

Lemma inputs_bound_spec xs ins ys D x :
  inputs_bound xs ins ys D = true -> In x ins -> exists y, arg xs ys x = Some y /\ In y D.
Proof.
  unfold inputs_bound. rewrite forallb_forall. intros H I. specialize (H x I).
  destruct (arg xs ys x) as [y |]; [| discriminate]. exists y. split; auto. now apply mem_spec.
Qed.

(** ** [db] only adds names *)

Lemma db_thread_extensive R ps :
  Forall (fun p => forall R D, incl D (db R D p)) ps -> forall D, incl D (thread (db R) D ps).
Proof.
  induction 1 as [| p ps Hp _ IH]; intros D0; simpl; [apply incl_refl |].
  eapply incl_tran; [apply Hp | apply IH].
Qed.

Lemma db_extensive p : forall R D, incl D (db R D p).
Proof.
  induction p as [x | f ps IH | F ps IH | p q IHp IHq | x p IH | p g IH | p x e IH
                 | p p' x IHp IHp' | xs ins outs small b ys IH | i ys] using pattern_ind';
    intros R D0; simpl.
  - apply incl_tl, incl_refl.
  - now apply db_thread_extensive.
  - eapply incl_tran; [apply incl_tl, incl_refl | now apply db_thread_extensive].
  - intros y I. apply inter_spec. split; [now apply IHp | now apply IHq].
  - apply incl_appl, incl_refl.
  - apply IH.
  - apply incl_tl, IH.
  - eapply incl_tran; [apply IHp | apply IHp'].
  - apply incl_appl, incl_refl.
  - destruct (nth_error R i); [apply incl_appl |]; apply incl_refl.
Qed.

(** ** [db] is sound: a match binds the names in it *)

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

Lemma db_sound_mut :
  (forall R p θ t, R ⊢ p @ θ ≈ t ->
     forall D, ok_rec R -> ok R D p = true -> all_bound θ D -> all_bound θ (db R D p)) /\
  (forall R ps θ ts, R ⊢ ps @ θ ≈* ts ->
     forall D, ok_rec R -> thread_check (db R) (ok R) D ps = true -> all_bound θ D ->
     all_bound θ (thread (db R) D ps)).
Proof.
  apply (matches_mutind
    (fun R p θ t _ => forall D, ok_rec R -> ok R D p = true ->
       all_bound θ D -> all_bound θ (db R D p))
    (fun R ps θ ts _ => forall D, ok_rec R -> thread_check (db R) (ok R) D ps = true ->
       all_bound θ D -> all_bound θ (thread (db R) D ps))).
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
    destruct (ok_mu _ _ _ _ _ _ _ _ O HR) as [Hi HR']. apply all_bound_arguments; auto.
    destruct HR' as (Hb & Ho & ?). intros x I. apply (IH ins); auto.
    { split; auto. } eapply all_bound_callenv; eauto.
  - (* call *) intros R i d R' ys θ t E _ IH D0 HR O B.
    destruct (ok_call _ _ _ _ _ _ O E HR) as [Hi HR'].
    simpl. rewrite (skipn_nth_error _ _ _ _ E). apply all_bound_arguments; auto.
    destruct HR' as (Hb & Ho & ?). intros x I. apply (IH (d_in d)); auto.
    { split; auto. } eapply all_bound_callenv; eauto.
  - (* nil *) intros. simpl. auto.
  - (* cons *) intros. simpl in *. split_checks. auto.
Qed.

Theorem db_sound R p θ t D :
  R ⊢ p @ θ ≈ t -> ok_rec R -> ok R D p = true -> all_bound θ D -> all_bound θ (db R D p).
Proof. intros H. apply (proj1 db_sound_mut _ _ _ _ H). Qed.

Corollary wf_db_sound p θ t x : wf p = true -> [] ⊢ p @ θ ≈ t -> In x (db [] [] p) -> θ x <> None.
Proof.
  intros W H. apply (db_sound _ _ _ _ _ H I W). intros y [].
Qed.
End WellFormed.
