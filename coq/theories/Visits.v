(** * Visits: the machine that also tells which operators it met

    An alternative carries the subjects whose operator it has matched, the last one first.  Alternatives
    that are alike have answers that are alike, and visit the same. *)

From Coq Require Import List Bool PeanoNat Lia.
Import ListNotations.
From PyPM Require Import Names Values Terms Guards Patterns Declarative Stores Machine BigStep
  Tabling.

Section Visits.
Context {Δ : Domain} {T : Type} {Σ : Structure T}.

(** ** The machine with visits *)

Definition visited (a : action T) : list T :=
  match a with
  | AMatch _ _ (POp _ _) t | AMatch _ _ (PFun _ _) t => [t]
  | _ => []
  end.

Definition alternative : Type := config T * list T.
Definition answer : Type := store T * list T.

(** One step of an alternative; what it leads to has visited the same. *)
Definition visit (σ : store T) (a : action T) (k : list (action T)) (v : list T)
    : list alternative :=
  map (fun c => (c, visited a ++ v)) (do_action σ a k).

Inductive visiting : list alternative -> list answer -> Prop :=
| V_failure : visiting [] []
| V_success σ v stk o : visiting stk o -> visiting (((σ, []), v) :: stk) ((σ, v) :: o)
| V_step σ a k v stk o :
    visiting (visit σ a k v ++ stk) o -> visiting (((σ, a :: k), v) :: stk) o.

(** Without visits it is the machine. *)
Theorem visiting_answers st o : visiting st o -> map fst st ⇓ map fst o.
Proof.
  induction 1 as [| σ v stk o _ IH | σ a k v stk o _ IH]; simpl.
  - constructor.
  - now constructor.
  - apply answers_step; auto. simpl. unfold visit in IH. rewrite map_app, map_map in IH. simpl in IH.
    now rewrite map_id in IH.
Qed.

Theorem answers_visiting c o : c ⇓ o -> forall st, map fst st = c ->
  exists o', visiting st o' /\ map fst o' = o.
Proof.
  induction 1 as [| σ stk o _ IH | c o Run _ IH]; intros st E.
  - apply map_eq_nil in E as ->. exists []. split; [constructor | auto].
  - destruct st as [| [c v] st]; [discriminate |]. injection E as -> E.
    destruct (IH st E) as (o' & H & <-). exists ((σ, v) :: o'). split; [now constructor | auto].
  - destruct st as [| [[σ [| a k]] v] st]; subst c; try discriminate.
    destruct (IH (visit σ a k v ++ st)) as (o' & H & <-).
    + simpl. unfold visit. rewrite map_app, map_map. simpl. now rewrite map_id.
    + exists o'. split; [now constructor | auto].
Qed.

(** The search of a pattern. *)
Definition search (p : pattern) (t : T) : list alternative := [((empty, [AMatch [] ρ0 p t]), [])].

Theorem visiting_machine p t o :
  (visiting (search p t) o -> init p t ⇓ map fst o) /\
  (init p t ⇓ map fst o -> exists o', visiting (search p t) o' /\ map fst o' = map fst o).
Proof.
  split; [apply visiting_answers |]. intros H. now apply (answers_visiting _ _ H).
Qed.

Lemma visiting_split st o : visiting st o -> forall X Y, st = X ++ Y ->
  exists a b, visiting X a /\ visiting Y b /\ o = a ++ b.
Proof.
  induction 1 as [| σ v stk o H IH | σ a k v stk o H IH]; intros X Y E.
  - symmetry in E. apply app_eq_nil in E as [-> ->]. exists [], []. repeat split; constructor.
  - destruct X as [| x X]; simpl in E.
    + subst Y. exists [], ((σ, v) :: o). repeat split; now constructor.
    + injection E as <- E. destruct (IH X Y E) as (a & b & A & B & ->).
      exists ((σ, v) :: a), b. repeat split; auto. now constructor.
  - destruct X as [| x X]; simpl in E.
    + subst Y. exists [], o. repeat split; now constructor.
    + injection E as <- ->. destruct (IH (visit σ a k v ++ X) Y) as (b & c & B & C & ->).
      * now rewrite app_assoc.
      * exists b, c. repeat split; auto. now constructor.
Qed.

Theorem visiting_deterministic st o o' : visiting st o -> visiting st o' -> o = o'.
Proof.
  intros H. revert o'. induction H; intros o' H'; inversion H'; subst; auto. f_equal; auto.
Qed.

Lemma visiting_app st o : visiting st o -> forall st' o', visiting st' o' ->
  visiting (st ++ st') (o ++ o').
Proof.
  induction 1 as [| σ v stk o _ IH | σ a k v stk o _ IH]; intros st' o' H'; simpl; auto.
  - constructor. auto.
  - constructor. rewrite app_assoc. auto.
Qed.

(** ** What cannot be done alone cannot be done before other actions *)

Lemma continue_app k k' (s : option (store T)) :
  continue (k ++ k') s = map (fun c => (fst c, snd c ++ k')) (continue k s).
Proof. destruct s; reflexivity. Qed.

Lemma do_action_app σ (a : action T) k k' :
  do_action σ a (k ++ k') = map (fun c => (fst c, snd c ++ k')) (do_action σ a k).
Proof.
  destruct a as [R ρ p t | ρ g | ρ x e | l | R ρ p x]; simpl.
  - destruct p; simpl; rewrite ?app_assoc, ?continue_app; auto.
    + destruct (dest t). destruct (_ && _); simpl; rewrite ?app_assoc; auto.
    + destruct (dest t). destruct (Nat.eqb _ _); simpl; rewrite ?app_assoc, ?continue_app; auto.
    + destruct (skipn _ _); auto.
  - destruct (geval _ _) as [[] |]; auto.
  - destruct (eval _ _); rewrite ?continue_app; auto.
  - destruct (get σ l); auto.
  - destruct ((get σ ∘ ρ) x) as [[] |]; auto.
Qed.

Definition then_do (k : list (action T)) (v : list T) (x : alternative) : alternative :=
  ((fst (fst x), snd (fst x) ++ k), snd x ++ v).

Lemma then_visit σ a j w k v :
  map (then_do k v) (visit σ a j w) = visit σ a (j ++ k) (w ++ v).
Proof.
  unfold visit. rewrite do_action_app, !map_map. apply map_ext. intros c.
  unfold then_do. simpl. now rewrite app_assoc.
Qed.

(** The answers of some actions, and then of others from each. *)
Lemma visiting_then k v st o : visiting st o -> forall rs,
  Forall2 (fun a r => visiting [((fst a, k), snd a ++ v)] r) o rs ->
  visiting (map (then_do k v) st) (concat rs).
Proof.
  induction 1 as [| σ w stk o _ IH | σ a j w stk o _ IH]; intros rs F.
  - inversion F; subst. constructor.
  - inversion F as [| ? r ? rs' V F']; subst. apply (visiting_app [_] r); auto.
  - simpl. unfold then_do at 1. simpl. constructor. rewrite <- then_visit, <- map_app. auto.
Qed.

Lemma visiting_then_none k v st o : visiting st o ->
  (forall a, In a o -> visiting [((fst a, k), snd a ++ v)] []) ->
  visiting (map (then_do k v) st) [].
Proof.
  intros H N. replace (@nil answer) with (concat (map (fun _ : answer => @nil answer) o)).
  - apply (visiting_then k v st o H). clear H.
    induction o as [| a o IH]; simpl; constructor; [apply N; now left |].
    apply IH. intros. apply N. now right.
  - clear. induction o; simpl; auto.
Qed.

(** ** Alternatives that are alike *)

Inductive action_alike (L : loc -> loc -> Prop) : action T -> action T -> Prop :=
| L_match R ρ ρ' p t : paired L ρ ρ' -> action_alike L (AMatch R ρ p t) (AMatch R ρ' p t)
| L_guard ρ ρ' g : paired L ρ ρ' -> action_alike L (AGuard ρ g) (AGuard ρ' g)
| L_let ρ ρ' x e : paired L ρ ρ' -> action_alike L (ALet ρ x e) (ALet ρ' x e)
| L_check l l' : L l l' -> action_alike L (ACheck l) (ACheck l')
| L_constraint R ρ ρ' p x : paired L ρ ρ' -> action_alike L (AMatchC R ρ p x) (AMatchC R ρ' p x).

(** The stores agree on the locations of [L] at least. *)
Definition config_alike (L : loc -> loc -> Prop) (c c' : config T) : Prop :=
  exists M : loc -> loc -> Prop, (forall l l', L l l' -> M l l') /\ agree M (fst c) (fst c') /\
    Forall2 (action_alike M) (snd c) (snd c').

Lemma paired_more (L M : loc -> loc -> Prop) ρ ρ' :
  (forall l l', L l l' -> M l l') -> paired L ρ ρ' -> paired M ρ ρ'.
Proof. intros S P x. specialize (P x). destruct (ρ x), (ρ' x); auto. Qed.

Lemma actions_more (L M : loc -> loc -> Prop) k k' :
  (forall l l', L l l' -> M l l') -> Forall2 (action_alike L) k k' -> Forall2 (action_alike M) k k'.
Proof.
  intros S. induction 1 as [| a a' k k' A _ IH]; constructor; auto.
  destruct A; constructor; eauto using paired_more.
Qed.

Lemma children_alike L R ρ ρ' k k' : paired L ρ ρ' -> Forall2 (action_alike L) k k' ->
  forall ps ts,
    Forall2 (action_alike L) (match_children R ρ ps ts ++ k) (match_children R ρ' ps ts ++ k').
Proof.
  intros P F. induction ps as [| p ps IH]; intros [| t ts]; simpl; auto. constructor; auto.
  now constructor.
Qed.

Lemma alike_intro (L : loc -> loc -> Prop) σ σ' k k' :
  agree L σ σ' -> Forall2 (action_alike L) k k' -> config_alike L (σ, k) (σ', k').
Proof. intros A F. exists L. auto. Qed.

Lemma continue_alike L k k' (s s' : option (store T)) :
  match s, s' with
  | Some τ, Some τ' => agree L τ τ'
  | None, None => True
  | _, _ => False
  end -> Forall2 (action_alike L) k k' -> Forall2 (config_alike L) (continue k s) (continue k' s').
Proof. destruct s, s'; simpl; try contradiction; repeat constructor. now apply alike_intro. Qed.

Lemma do_action_alike L σ σ' a a' k k' :
  agree L σ σ' -> action_alike L a a' -> Forall2 (action_alike L) k k' ->
  Forall2 (config_alike L) (do_action σ a k) (do_action σ' a' k').
Proof.
  intros A C F. destruct C as [R ρ ρ' p t P | ρ ρ' g P | ρ ρ' x e P | l l' P | R ρ ρ' p x P]; simpl.
  - destruct p as [x | f ps | G ps | p q | x p | p g | p x e | p p' x
                  | xs ins outs small b ys | i ys]; simpl.
    + apply continue_alike; auto. now apply agree_bind.
    + destruct (dest t). destruct (_ && _); repeat constructor.
      apply alike_intro; auto. now apply children_alike.
    + destruct (dest t). destruct (Nat.eqb _ _); [| constructor].
      apply continue_alike; [now apply agree_bind | now apply children_alike].
    + repeat constructor; apply alike_intro; auto; constructor; auto; now constructor.
    + constructor; [| constructor]. exists (with_fresh L σ σ'). split; [| split].
      * unfold with_fresh. auto.
      * now apply agree_alloc.
      * constructor; [| constructor].
        -- constructor. eapply paired_update; [| exact P |]; unfold with_fresh; auto.
        -- constructor. unfold with_fresh. auto.
        -- eapply actions_more; [| exact F]. unfold with_fresh. auto.
    + repeat constructor; apply alike_intro; auto. repeat constructor; auto.
    + repeat constructor; apply alike_intro; auto. repeat constructor; auto.
    + repeat constructor; apply alike_intro; auto. repeat constructor; auto.
    + repeat constructor; apply alike_intro; auto. repeat constructor; auto using paired_callenv.
    + destruct (skipn i R); repeat constructor. apply alike_intro; auto.
      repeat constructor; auto using paired_callenv.
  - assert (E : guard_holds ρ g σ = guard_holds ρ' g σ') by (eapply guard_alike; eauto).
    unfold guard_holds in E.
    destruct (geval (get σ ∘ ρ) g) as [[] |], (geval (get σ' ∘ ρ') g) as [[] |];
      try discriminate; repeat constructor; now apply alike_intro.
  - rewrite (eval_agree (get σ ∘ ρ) (get σ' ∘ ρ')) by (intros y _; eapply same_values; eauto).
    destruct (eval _ e); [| constructor]. apply continue_alike; auto. now apply agree_bind.
  - rewrite (agree_get _ _ _ A l l' P). destruct (get σ' l'); repeat constructor.
    now apply alike_intro.
  - rewrite (same_values L σ σ' ρ ρ' x A P).
    destruct ((get σ' ∘ ρ') x) as [[] |]; repeat constructor. apply alike_intro; auto.
    repeat constructor; auto.
Qed.

Lemma configs_more (L M : loc -> loc -> Prop) cs cs' :
  (forall l l', L l l' -> M l l') ->
  Forall2 (config_alike M) cs cs' -> Forall2 (config_alike L) cs cs'.
Proof.
  intros S. induction 1 as [| c c' cs cs' (N & S' & A & F) _ IH]; constructor; auto.
  exists N. auto.
Qed.

Definition alternatives_alike (L : loc -> loc -> Prop) (V : list T -> list T -> Prop)
    (x x' : alternative) : Prop :=
  config_alike L (fst x) (fst x') /\ V (snd x) (snd x').

Lemma config_alike_step L σ σ' a a' k k' :
  config_alike L (σ, a :: k) (σ', a' :: k') ->
  visited a = visited a' /\ Forall2 (config_alike L) (do_action σ a k) (do_action σ' a' k').
Proof.
  intros (M & S & A & F). simpl in *. inversion F; subst. split.
  - match goal with H : action_alike _ _ _ |- _ => destruct H end; reflexivity.
  - eapply configs_more; [exact S |]. apply do_action_alike; auto.
Qed.

(** Alternatives that are alike have answers that are alike, in the same order, and visit the same from
    there on. *)
Theorem visiting_alike L (V : list T -> list T -> Prop) st o :
  (forall u v v', V v v' -> V (u ++ v) (u ++ v')) ->
  visiting st o ->
  forall st', Forall2 (alternatives_alike L V) st st' ->
  exists o', visiting st' o' /\
    Forall2 (fun a a' => agree L (fst a) (fst a') /\ V (snd a) (snd a')) o o'.
Proof.
  intros Vapp. induction 1 as [| σ v stk o _ IH | σ a k v stk o _ IH]; intros st' F.
  - inversion F; subst. exists []. split; constructor.
  - inversion F as [| ? [[σ' k'] v'] ? stk' [(M & S & A & K) E] F']; subst. simpl in *.
    inversion K; subst. destruct (IH stk' F') as (o' & H & Fo). exists ((σ', v') :: o').
    split; [now constructor |]. constructor; auto. simpl. split; auto. eapply agree_fewer; eauto.
  - inversion F as [| ? [[σ' k'] v'] ? stk' [C E] F']; subst. simpl in *.
    destruct k' as [| a' k']; [destruct C as (M & _ & _ & K); inversion K |].
    destruct (config_alike_step _ _ _ _ _ _ _ C) as [W D].
    destruct (IH (visit σ' a' k' v' ++ stk')) as (o' & H & Fo).
    + apply Forall2_app; auto. unfold visit. rewrite W. clear - D E Vapp.
      induction D; simpl; constructor; auto. split; simpl; auto.
    + exists o'. split; [now constructor | auto].
Qed.
End Visits.

Arguments alternative {Δ} T.
Arguments answer {Δ} T.
