(** * Visits of compiled code

    The machine of compiled code, with the subjects whose operators it tests.  It gives the answers and
    the visits of the machine on patterns, in the same order, and ends exactly if that one ends. *)

From Coq Require Import List Bool PeanoNat Lia.
Import ListNotations.
From PyPM Require Import Names Values Terms Guards Patterns Declarative Stores Machine BigStep Tabling
  Visits Compile.

Section CodeVisits.
Context {Δ : Domain} {T : Type} {Σ : Structure T}.

(** ** The machine of code, with visits *)

Definition code_visited (x : vm_config) : list T :=
  match vm_code x, vm_subjects x with
  | IOp _ _ :: _, t :: _ | IFun _ _ :: _, t :: _ => [t]
  | _, _ => []
  end.

Definition code_alternative : Type := vm_config (T := T) * list T.

Definition code_visit (x : vm_config) (v : list T) : list code_alternative :=
  map (fun y => (y, code_visited x ++ v)) (vm_expand x).

Inductive code_visiting : list code_alternative -> list (answer T) -> Prop :=
| C_failure : code_visiting [] []
| C_success σ K F v stk o :
    code_visiting stk o -> code_visiting ((VM σ K F [], v) :: stk) ((σ, v) :: o)
| C_step σ K F i c v stk o :
    code_visiting (code_visit (VM σ K F (i :: c)) v ++ stk) o ->
    code_visiting ((VM σ K F (i :: c), v) :: stk) o.

(** Without visits it is the machine of code. *)
Lemma code_visiting_answers st o : code_visiting st o -> vm_answers (map fst st) (map fst o).
Proof.
  induction 1 as [| σ K F v stk o _ IH | σ K F i c v stk o _ IH]; cbn [map fst].
  - constructor.
  - now constructor.
  - apply vm_step. unfold code_visit in IH. rewrite map_app, map_map in IH. cbn [fst] in IH.
    now rewrite map_id in IH.
Qed.

Lemma answers_code_visiting c o : vm_answers c o -> forall st, map fst st = c ->
  exists o', code_visiting st o' /\ map fst o' = o.
Proof.
  induction 1 as [| σ K F stk o _ IH | σ K F i c stk o _ IH]; intros st E.
  - apply map_eq_nil in E as ->. exists []. split; [constructor | auto].
  - destruct st as [| [x v] st]; [discriminate |]. injection E as -> E.
    destruct (IH st E) as (o' & H & <-). exists ((σ, v) :: o'). split; [now constructor | auto].
  - destruct st as [| [x v] st]; [discriminate |]. injection E as -> <-.
    destruct (IH (code_visit (VM σ K F (i :: c)) v ++ st)) as (o' & H & <-).
    + unfold code_visit. rewrite map_app, map_map. cbn [fst]. now rewrite map_id.
    + exists o'. split; [now constructor | auto].
Qed.

Lemma code_visiting_app st o : code_visiting st o -> forall st' o', code_visiting st' o' ->
  code_visiting (st ++ st') (o ++ o').
Proof.
  induction 1 as [| σ K F v stk o _ IH | σ K F i c v stk o _ IH]; intros st' o' H'; simpl; auto.
  - constructor. auto.
  - constructor. rewrite app_assoc. auto.
Qed.

Lemma code_visiting_split st o : code_visiting st o -> forall X Y, st = X ++ Y ->
  exists a b, code_visiting X a /\ code_visiting Y b /\ o = a ++ b.
Proof.
  induction 1 as [| σ K F v stk o H IH | σ K F i c v stk o H IH]; intros X Y E.
  - symmetry in E. apply app_eq_nil in E as [-> ->]. exists [], []. repeat split; constructor.
  - destruct X as [| x X]; simpl in E.
    + subst Y. exists [], ((σ, v) :: o). repeat split; now constructor.
    + injection E as <- E. destruct (IH X Y E) as (a & b & A & B & ->).
      exists ((σ, v) :: a), b. repeat split; auto. now constructor.
  - destruct X as [| x X]; simpl in E.
    + subst Y. exists [], o. repeat split; now constructor.
    + injection E as <- ->.
      destruct (IH (code_visit (VM σ K F (i :: c)) v ++ X) Y) as (b & d & B & D & ->).
      * now rewrite app_assoc.
      * exists b, d. repeat split; auto. now constructor.
Qed.

(** ** It visits what the machine on patterns visits *)

Definition runs_with (x : code_alternative) (y : alternative T) : Prop :=
  runs (fst x) (fst y) /\ snd x = snd y.

Lemma runs_visit x cs v w : Forall2 runs (vm_expand x) cs -> v = w ->
  Forall2 runs_with (code_visit x v) (map (fun c => (c, code_visited x ++ w)) cs).
Proof.
  intros H ->. unfold code_visit. induction H; simpl; constructor; auto. now split.
Qed.

Lemma visited_alike c K F a k σ :
  decodes c K F (a :: k) -> not_return c -> only_splits a = false ->
  visited a = code_visited (VM σ K F c).
Proof.
  intros H N Sp. inversion H; subst; simpl in N; try tauto; auto.
  destruct p; try discriminate Sp; auto.
Qed.

Lemma visits_nothing (a : action T) : only_splits a = true -> visited a = [].
Proof. destruct a as [R ρ p t | | | |]; try discriminate. now destruct p. Qed.

Lemma skip_code_returns c K F k :
  decodes c K F k -> forall σ v stk o,
  (forall c' K' F', decodes c' K' F' k -> not_return c' ->
     code_visiting ((VM σ K' F' c', v) :: stk) o) ->
  code_visiting ((VM σ K F c, v) :: stk) o.
Proof.
  induction 1; intros σ v stk o H'; try (apply H'; [constructor; auto | exact I]).
  - apply H'; [now constructor | apply compile_not_return].
  - apply C_step. simpl. auto.
Qed.

Lemma visiting_code st o : visiting st o -> forall vst, Forall2 runs_with vst st -> code_visiting vst o.
Proof.
  induction 1 as [| σ v stk o _ IH | σ a k v stk o _ IH]; intros vst H.
  - inversion H. constructor.
  - inversion H as [| [[σ' K F c] v'] ? vst' ? [[E D] Ev] H']; subst. simpl in E, D, Ev. subst.
    eapply skip_code_returns; eauto. intros c' K' F' D' N.
    inversion D'; subst; simpl in N; try tauto. constructor. auto.
  - inversion H as [| [[σ' K F c] v'] ? vst' ? [[E D] Ev] H']; subst. simpl in E, D, Ev. subst.
    eapply skip_code_returns; eauto. intros c' K' F' D' N.
    destruct (only_splits a) eqn:Sp.
    + destruct (split_step σ K' F' c' a k D' N Sp) as (k' & Es & HR). apply IH. unfold visit.
      rewrite Es, (visits_nothing a Sp). constructor; auto. split; auto. now apply runs_intro.
    + destruct (simulate σ K' F' c' a k D' N Sp) as [NE HR].
      pose proof (visited_alike c' K' F' a k σ D' N Sp) as V.
      destruct c' as [| i c']; [now destruct NE |]. apply C_step. apply IH. apply Forall2_app; auto.
      unfold visit. rewrite V. now apply runs_visit.
Qed.

(** The actions that code does, begun with one that does not only split. *)
Fixpoint first_split (R : recursion) (ρ : locs) (p : pattern) (t : T) (k : list (action T))
    : list (action T) :=
  match p with
  | PGuard p g => first_split R ρ p t (AGuard ρ g :: k)
  | PLet p x e => first_split R ρ p t (ALet ρ x e :: k)
  | PMatch p p' x => first_split R ρ p t (AMatchC R ρ p' x :: k)
  | _ => AMatch R ρ p t :: k
  end.

Definition all_split (k : list (action T)) : list (action T) :=
  match k with
  | AMatch R ρ p t :: k => first_split R ρ p t k
  | _ => k
  end.

Lemma all_split_visiting k σ v stk o :
  visiting (((σ, all_split k), v) :: stk) o <-> visiting (((σ, k), v) :: stk) o.
Proof.
  destruct k as [| [R ρ p t | | | |] k]; try (simpl; tauto).
  revert k. simpl.
  induction p using pattern_ind'; intros k; simpl; try tauto;
    match goal with IH : forall k, visiting (((σ, first_split R ρ ?p t k), v) :: stk) o <-> _ |- _ =>
      rewrite IH; clear - k end;
    (split; intros H; [now apply V_step | now inversion H]).
Qed.

Lemma all_split_spec c K F a k : decodes c K F (a :: k) ->
  exists a' k', all_split (a :: k) = a' :: k' /\ only_splits a' = false /\
    (not_return c -> decodes c K F (a' :: k')).
Proof.
  intros H. destruct a as [R ρ p t | | | |]; try (simpl; eauto 6; fail).
  remember (AMatch R ρ p t :: k) as k0 eqn:E. revert R ρ p t k E.
  induction H; intros R' ρ' p' t' k' E; try discriminate.
  - injection E as -> -> -> -> ->. clear IHdecodes. revert c k' H. cbn [all_split].
    induction p' using pattern_ind'; intros c k' D; cbn [first_split];
      try (do 2 eexists; (split; [reflexivity |]); split; [reflexivity | now intros; apply D_match]);
      cbn [compile]; rewrite <- app_assoc; [apply IHp' | apply IHp' | apply IHp'1]; now constructor.
  - destruct (IHdecodes _ _ _ _ _ E) as (a' & k1 & Es & Sp & _). simpl in Es. subst k.
    do 2 eexists. split; [exact Es |]. split; auto. intros [].
Qed.

Lemma no_code (K : list T) F k : decodes [] K F k -> k = [].
Proof.
  intros H. inversion H as [| ? ? p ? c ? ? ? _ E | | | | |]; auto. exfalso. clear - E. revert c E.
  induction p using pattern_ind'; intros c; simpl; try discriminate; rewrite <- app_assoc;
    eauto.
Qed.

(** A step of code returns, or does the first action. *)
Lemma code_step i c K F k σ : decodes (i :: c) K F k ->
  (exists f F', i = IRet /\ F = f :: F' /\ decodes c K F' k) \/
  (exists a k', all_split k = a :: k' /\ only_splits a = false /\
     visited a = code_visited (VM σ K F (i :: c)) /\
     decodes (i :: c) K F (a :: k') /\
     Forall2 runs (vm_expand (VM σ K F (i :: c))) (do_action σ a k')).
Proof.
  intros D. assert (N : i = IRet \/ not_return (i :: c)) by (destruct i; simpl; auto).
  destruct N as [-> | N]; [left | right].
  - inversion D; subst; eauto. exfalso.
    match goal with E : compile ?p ++ ?c = _ |- _ => pose proof (compile_not_return p c) as N end.
    rewrite H in N. exact N.
  - destruct k as [| a k]; [inversion D; subst; now destruct N |].
    destruct (all_split_spec _ _ _ _ _ D) as (a' & k' & E & Sp & D'). specialize (D' N).
    exists a', k'. repeat split; auto.
    + exact (visited_alike _ _ _ _ _ σ D' N Sp).
    + exact (proj2 (simulate σ _ _ _ _ _ D' N Sp)).
Qed.

Lemma code_visiting_machine vst o : code_visiting vst o -> forall st, Forall2 runs_with vst st ->
  visiting st o.
Proof.
  induction 1 as [| σ K F v stk o _ IH | σ K F i c v stk o _ IH]; intros st H;
    inversion H as [| ? [[σ' k] v'] ? st' [[E D] Ev] H']; subst; try constructor;
    simpl in E, D, Ev; subst.
  - rewrite (no_code _ _ _ D). constructor. auto.
  - destruct (code_step i c K F k σ' D) as [([R ρ] & F' & -> & -> & D') | (a & k' & E & _ & V & _ & HR)].
    + apply IH. simpl. constructor; auto. split; auto. now apply runs_intro.
    + apply all_split_visiting. rewrite E. apply V_step. apply IH. apply Forall2_app; auto.
      unfold visit. rewrite V. now apply runs_visit.
Qed.

(** The search of compiled code. *)
Definition code_search (p : pattern) (t : T) : list code_alternative :=
  map (fun x => (x, [])) (vm_init p t).

Theorem code_visits p t o : code_visiting (code_search p t) o <-> visiting (search p t) o.
Proof.
  assert (H : Forall2 runs_with (code_search p t) (search p t)).
  { repeat constructor. rewrite <- (app_nil_r (compile p)). apply (D_match []), D_nil. }
  split; intros V; [eapply code_visiting_machine | eapply visiting_code]; eauto.
Qed.

(** So if the run of code ends, that of the machine does. *)
Corollary compile_exact p t o : init p t ⇓ o <-> vm_answers (vm_init p t) o.
Proof.
  split; [apply compile_answers |]. intros H.
  destruct (answers_code_visiting _ _ H (code_search p t) eq_refl) as (o' & V & <-).
  apply code_visits in V. now apply (visiting_answers (search p t)).
Qed.
End CodeVisits.

Arguments code_alternative {Δ} T.
