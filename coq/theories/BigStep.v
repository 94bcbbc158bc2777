(** * Ordered big-step semantics (T5)

    [evaluates R ρ p t σ o]: matching [p] against [t] from the store [σ] yields exactly the stores [o],
    in this order.  Alternates append, children are a product from left to right, and binders and
    guards filter.  This is the readable definition of "leftmost first"; the machine computes it. *)

From Coq Require Import List Bool PeanoNat.
Import ListNotations.
From PyPM Require Import Names Values Terms Guards Patterns Declarative Stores Machine Enumeration.

Section BigStep.
Context {Δ : Domain} {T : Type} {Σ : Structure T}.

Definition option_list {A : Type} (o : option A) : list A :=
  match o with Some a => [a] | None => [] end.

(** The tests and bindings of the actions, as functions on stores. *)
Definition guard_holds (ρ : locs) (g : guard) (σ : store T) : bool :=
  match geval (get σ ∘ ρ) g with Some true => true | _ => false end.

Definition is_bound (l : loc) (σ : store T) : bool :=
  match get σ l with Some _ => true | None => false end.

Definition assign (ρ : locs) (x : name) (e : expr) (σ : store T) : option (store T) :=
  option_bind (eval (get σ ∘ ρ) e) (bind_name σ ρ x).

Inductive evaluates : recursion -> locs -> pattern -> T -> store T -> list (store T) -> Prop :=
(* a variable: the store with the variable bound, if that agrees *)
| E_var R ρ x t σ :
    evaluates R ρ (PVar x) t σ (option_list (bind_name σ ρ x (VTerm t)))
(* an operator: the children, if the operator and the number of children agree *)
| E_op R ρ f ps t ts σ o :
    dest t = (f, ts) -> length ps = length ts -> evaluates_children R ρ ps ts σ o ->
    evaluates R ρ (POp f ps) t σ o
| E_op_fail R ρ f ps t g ts σ :
    dest t = (g, ts) -> f <> g \/ length ps <> length ts ->
    evaluates R ρ (POp f ps) t σ []
(* an operator variable: bound before the children *)
| E_fun R ρ F ps t f ts σ o :
    dest t = (f, ts) -> length ps = length ts ->
    evaluates_each R ρ ps ts (option_list (bind_name σ ρ F (VOp f))) o ->
    evaluates R ρ (PFun F ps) t σ o
| E_fun_fail R ρ F ps t f ts σ :
    dest t = (f, ts) -> length ps <> length ts ->
    evaluates R ρ (PFun F ps) t σ []
(* alternates: the answers of the first, then those of the second *)
| E_alt R ρ p q t σ o o' :
    evaluates R ρ p t σ o -> evaluates R ρ q t σ o' ->
    evaluates R ρ (PAlt p q) t σ (o ++ o')
(* a binder: the answers that bind the local name *)
| E_ex R ρ x p t σ o l :
    l = LFresh (next σ) -> evaluates R (update ρ x l) p t (alloc σ) o ->
    evaluates R ρ (PEx x p) t σ (filter (is_bound l) o)
(* a guard: the answers under which it holds *)
| E_guard R ρ p g t σ o :
    evaluates R ρ p t σ o ->
    evaluates R ρ (PGuard p g) t σ (filter (guard_holds ρ g) o)
(* a let: the answers that agree with it, extended by it *)
| E_let R ρ p x e t σ o :
    evaluates R ρ p t σ o ->
    evaluates R ρ (PLet p x e) t σ (flat_map (fun σ' => option_list (assign ρ x e σ')) o)
(* a match constraint: from each answer, the answers of the constraint *)
| E_match R ρ p p' x t σ o o' :
    evaluates R ρ p t σ o -> evaluates_constraint R ρ p' x o o' ->
    evaluates R ρ (PMatch p p' x) t σ o'
(* a recursive pattern and a call: the answers of the body *)
| E_mu R ρ xs ins outs small b ys t σ o :
    evaluates (Def xs ins outs small b :: R) (callenv xs ys ρ) b t σ o ->
    evaluates R ρ (PMu xs ins outs small b ys) t σ o
| E_call R ρ i ys t σ d R' o :
    skipn i R = d :: R' ->
    evaluates (d :: R') (callenv (d_params d) ys ρ) (d_body d) t σ o ->
    evaluates R ρ (PCall i ys) t σ o
| E_call_fail R ρ i ys t σ :
    skipn i R = [] ->
    evaluates R ρ (PCall i ys) t σ []

(** Children against patterns, from one store. *)
with evaluates_children :
  recursion -> locs -> list pattern -> list T -> store T -> list (store T) -> Prop :=
| E_nil R ρ σ :
    evaluates_children R ρ [] [] σ [σ]
| E_cons R ρ p ps t ts σ o o' :
    evaluates R ρ p t σ o -> evaluates_each R ρ ps ts o o' ->
    evaluates_children R ρ (p :: ps) (t :: ts) σ o'

(** Children against patterns, from each of several stores. *)
with evaluates_each :
  recursion -> locs -> list pattern -> list T -> list (store T) -> list (store T) -> Prop :=
| E_each_nil R ρ ps ts :
    evaluates_each R ρ ps ts [] []
| E_each_cons R ρ ps ts σ σs o o' :
    evaluates_children R ρ ps ts σ o -> evaluates_each R ρ ps ts σs o' ->
    evaluates_each R ρ ps ts (σ :: σs) (o ++ o')

(** What a name stands for against a pattern, from each of several stores. *)
with evaluates_constraint :
  recursion -> locs -> pattern -> name -> list (store T) -> list (store T) -> Prop :=
| E_con_nil R ρ p x :
    evaluates_constraint R ρ p x [] []
| E_con_cons R ρ p x t σ σs o o' :
    (get σ ∘ ρ) x = Some (VTerm t) -> evaluates R ρ p t σ o ->
    evaluates_constraint R ρ p x σs o' ->
    evaluates_constraint R ρ p x (σ :: σs) (o ++ o')
| E_con_skip R ρ p x σ σs o' :
    (forall t, (get σ ∘ ρ) x <> Some (VTerm t)) ->
    evaluates_constraint R ρ p x σs o' ->
    evaluates_constraint R ρ p x (σ :: σs) o'.

Scheme evaluates_mut := Induction for evaluates Sort Prop
  with evaluates_children_mut := Induction for evaluates_children Sort Prop
  with evaluates_each_mut := Induction for evaluates_each Sort Prop
  with evaluates_constraint_mut := Induction for evaluates_constraint Sort Prop.
Combined Scheme evaluates_mutind from evaluates_mut, evaluates_children_mut, evaluates_each_mut,
  evaluates_constraint_mut.

(** ** The stack as a list of answers, each with the same actions to do *)

Definition with_actions (k : list (action T)) (o : list (store T)) : state T :=
  map (fun σ => (σ, k)) o.

Lemma with_actions_app k o o' stk :
  with_actions k (o ++ o') ++ stk = with_actions k o ++ with_actions k o' ++ stk.
Proof. unfold with_actions. now rewrite map_app, <- app_assoc. Qed.

(** It is enough to step the head ... *)
Lemma answers_expand σ a k stk (o : list (store T)) :
  do_action σ a k ++ stk ⇓ o -> (σ, a :: k) :: stk ⇓ o.
Proof. intros H. now apply answers_step. Qed.

(** ... and a stack may be exchanged below alternatives that are tried before it. *)
Lemma answers_below (X Y : state T) :
  (forall o, X ⇓ o -> Y ⇓ o) -> forall pre o, pre ++ X ⇓ o -> pre ++ Y ⇓ o.
Proof.
  intros H pre o R. remember (pre ++ X) as st eqn:E. revert pre E.
  induction R as [| σ stk o R IH | st o Run R IH]; intros pre E.
  - destruct pre; [| discriminate]. simpl in *. apply H. rewrite <- E. constructor.
  - destruct pre as [| c pre]; [simpl in *; apply H; rewrite <- E; now constructor |].
    injection E as <- ->. constructor. now apply IH.
  - destruct pre as [| c pre]; [simpl in *; apply H; rewrite <- E; now apply answers_step |].
    subst st. apply answers_step; [destruct c as [? [|]]; simpl in *; congruence |].
    simpl. rewrite app_assoc. apply IH. simpl. now rewrite app_assoc.
Qed.

(** An action that gives at most one store, done after each of several answers. *)
Lemma answers_flat_map (P : store T -> option (store T)) a k :
  (forall σ, do_action σ a k = continue k (P σ)) ->
  forall o stk o', with_actions k (flat_map (fun σ => option_list (P σ)) o) ++ stk ⇓ o' ->
  with_actions (a :: k) o ++ stk ⇓ o'.
Proof.
  intros H. induction o as [| σ o IH]; intros stk o' R; [exact R |].
  apply answers_expand. rewrite H. simpl in R. destruct (P σ) as [σ' |]; [| now apply IH].
  revert R. apply (answers_below _ _ (IH stk) [(σ', k)]).
Qed.

(** A test, done after each of several answers. *)
Lemma answers_filter (P : store T -> bool) a k :
  (forall σ, do_action σ a k = if P σ then [(σ, k)] else []) ->
  forall o stk o', with_actions k (filter P o) ++ stk ⇓ o' -> with_actions (a :: k) o ++ stk ⇓ o'.
Proof.
  intros H o stk o' R.
  apply answers_flat_map with (fun σ => if P σ then Some σ else None).
  - intros σ. rewrite H. now destruct (P σ).
  - replace (flat_map _ o) with (filter P o); auto.
    clear. induction o as [| σ o IH]; simpl; auto. rewrite IH. now destruct (P σ).
Qed.

(** ** The machine computes the big-step semantics *)

Lemma evaluates_machine_mut :
  (forall R ρ p t σ o, evaluates R ρ p t σ o -> forall k stk o',
     with_actions k o ++ stk ⇓ o' -> (σ, AMatch R ρ p t :: k) :: stk ⇓ o') /\
  (forall R ρ ps ts σ o, evaluates_children R ρ ps ts σ o -> forall k stk o',
     with_actions k o ++ stk ⇓ o' -> (σ, match_children R ρ ps ts ++ k) :: stk ⇓ o') /\
  (forall R ρ ps ts σs o, evaluates_each R ρ ps ts σs o -> forall k stk o',
     with_actions k o ++ stk ⇓ o' ->
     with_actions (match_children R ρ ps ts ++ k) σs ++ stk ⇓ o') /\
  (forall R ρ p x σs o, evaluates_constraint R ρ p x σs o -> forall k stk o',
     with_actions k o ++ stk ⇓ o' -> with_actions (AMatchC R ρ p x :: k) σs ++ stk ⇓ o').
Proof.
  apply evaluates_mutind; intros;
    try match goal with |- (_, AMatch _ _ _ _ :: _) :: _ ⇓ _ => apply answers_expand end;
    simpl in *;
    repeat match goal with
    | E : dest _ = _ |- _ => rewrite E
    | E : skipn _ _ = _ |- _ => rewrite E
    | E : length _ = length _ |- _ => rewrite E
    end; rewrite ?Nat.eqb_refl; simpl; auto.
  - (* var *) destruct (bind_name _ _ _ _); auto.
  - (* op_fail *) destruct (_ && _) eqn:Q; auto. apply andb_prop in Q as [Q1 Q2].
    apply Nat.eqb_eq in Q1, Q2. tauto.
  - (* fun *) specialize (H _ _ _ H0). destruct (bind_name _ _ _ _); exact H.
  - (* fun_fail *) destruct (Nat.eqb _ _) eqn:Q; auto. apply Nat.eqb_eq in Q. tauto.
  - (* alt *) rewrite with_actions_app in H1. apply H. revert H1. apply answers_below. auto.
  - (* ex *) subst l. apply H. revert H0. apply answers_filter. intros σ'. unfold is_bound. simpl.
    now destruct (get σ' _).
  - (* guard *) apply H. revert H0. apply answers_filter. intros σ'. unfold guard_holds. simpl.
    now destruct (geval _ _) as [[] |].
  - (* let *) apply H. revert H0. apply answers_flat_map. intros σ'. unfold assign. simpl.
    now destruct (eval _ _).
  - (* each_cons *) rewrite with_actions_app in H1. apply H. revert H1. apply answers_below. auto.
  - (* con_cons *) rewrite with_actions_app in H1. apply answers_expand. simpl. rewrite e. simpl.
    apply H. revert H1. apply answers_below. auto.
  - (* con_skip *) apply answers_expand. simpl.
    destruct ((get σ ∘ ρ) x) as [[t | | |] |] eqn:Q; simpl; auto. now destruct (n t).
Qed.

Lemma with_actions_done (o : list (store T)) : with_actions [] o ⇓ o.
Proof. induction o; simpl; constructor; auto. Qed.

Theorem evaluates_machine p t o : evaluates [] ρ0 p t empty o -> init p t ⇓ o.
Proof.
  intros H. apply (proj1 evaluates_machine_mut _ _ _ _ _ _ H).
  rewrite app_nil_r. apply with_actions_done.
Qed.

(** Hence the big-step semantics is deterministic, and whatever the machine answers is its answer. *)
Corollary evaluates_unique p t o o' :
  evaluates [] ρ0 p t empty o -> init p t ⇓ o' -> o = o'.
Proof. intros H H'. eapply answers_deterministic; [apply evaluates_machine |]; eauto. Qed.

(** ** As a function

    With fuel for the depth of the recursion; [None] if it does not suffice. *)

(** From each store, the stores that follow. *)
Fixpoint each_store (f : store T -> option (list (store T))) (o : list (store T))
    : option (list (store T)) :=
  match o with
  | [] => Some []
  | σ :: o =>
      option_bind (f σ) (fun o1 => option_bind (each_store f o) (fun o2 => Some (o1 ++ o2)))
  end.

Section Children.
Variable f : pattern -> T -> store T -> option (list (store T)).

Fixpoint enumerate_children (ps : list pattern) (ts : list T) (σ : store T)
    : option (list (store T)) :=
  match ps, ts with
  | [], [] => Some [σ]
  | p :: ps, t :: ts => option_bind (f p t σ) (each_store (enumerate_children ps ts))
  | _, _ => None
  end.
End Children.

Fixpoint enumerate (n : nat) (R : recursion) (ρ : locs) (p : pattern) (t : T) (σ : store T)
    : option (list (store T)) :=
  match n with
  | 0 => None
  | S n =>
      match p with
      | PVar x => Some (option_list (bind_name σ ρ x (VTerm t)))
      | POp f ps =>
          let (g, ts) := dest t in
          if Nat.eqb f g && Nat.eqb (length ps) (length ts)
          then enumerate_children (enumerate n R ρ) ps ts σ else Some []
      | PFun F ps =>
          let (f, ts) := dest t in
          if Nat.eqb (length ps) (length ts)
          then each_store (enumerate_children (enumerate n R ρ) ps ts)
                 (option_list (bind_name σ ρ F (VOp f)))
          else Some []
      | PAlt p q =>
          option_bind (enumerate n R ρ p t σ) (fun o1 =>
            option_bind (enumerate n R ρ q t σ) (fun o2 => Some (o1 ++ o2)))
      | PEx x p =>
          let l := LFresh (next σ) in
          option_map (filter (is_bound l)) (enumerate n R (update ρ x l) p t (alloc σ))
      | PGuard p g => option_map (filter (guard_holds ρ g)) (enumerate n R ρ p t σ)
      | PLet p x e =>
          option_map (flat_map (fun σ' => option_list (assign ρ x e σ'))) (enumerate n R ρ p t σ)
      | PMatch p p' x =>
          option_bind (enumerate n R ρ p t σ)
            (each_store (fun σ' =>
               match (get σ' ∘ ρ) x with
               | Some (VTerm t') => enumerate n R ρ p' t' σ'
               | _ => Some []
               end))
      | PMu xs ins outs small b ys =>
          enumerate n (Def xs ins outs small b :: R) (callenv xs ys ρ) b t σ
      | PCall i ys =>
          match skipn i R with
          | d :: R' => enumerate n (d :: R') (callenv (d_params d) ys ρ) (d_body d) t σ
          | [] => Some []
          end
      end
  end.

Lemma each_store_sound R ρ f ps ts :
  (forall σ o, enumerate_children f ps ts σ = Some o -> evaluates_children R ρ ps ts σ o) ->
  forall σs o, each_store (enumerate_children f ps ts) σs = Some o ->
  evaluates_each R ρ ps ts σs o.
Proof.
  intros H. induction σs as [| σ σs IH]; intros o E; cbn [each_store] in E.
  - injection E as <-. constructor.
  - destruct (enumerate_children f ps ts σ) as [o1 |] eqn:E1; [| discriminate].
    destruct (each_store (enumerate_children f ps ts) σs) as [o2 |] eqn:E2; [| discriminate].
    injection E as <-. constructor; auto.
Qed.

Lemma enumerate_children_sound R ρ f :
  (forall p t σ o, f p t σ = Some o -> evaluates R ρ p t σ o) ->
  forall ps ts σ o, enumerate_children f ps ts σ = Some o -> evaluates_children R ρ ps ts σ o.
Proof.
  intros Hf. induction ps as [| p ps IH]; intros [| t ts] σ o E; try discriminate; simpl in E.
  - injection E as <-. constructor.
  - destruct (f p t σ) as [o1 |] eqn:E1; [| discriminate]. simpl in E.
    econstructor; [apply Hf, E1 |]. eapply each_store_sound; eauto.
Qed.

Lemma each_constraint_sound R ρ p x (f : T -> store T -> option (list (store T))) :
  (forall t σ o, f t σ = Some o -> evaluates R ρ p t σ o) ->
  forall σs o,
  each_store (fun σ => match (get σ ∘ ρ) x with Some (VTerm t) => f t σ | _ => Some [] end) σs =
    Some o ->
  evaluates_constraint R ρ p x σs o.
Proof.
  intros Hf. induction σs as [| σ σs IH]; intros o E; cbn [each_store] in E.
  - injection E as <-. constructor.
  - match type of E with option_bind ?a _ = _ => destruct a as [o1 |] eqn:E1; [| discriminate] end.
    match type of E with option_bind _ (fun o1 => option_bind ?a _) = _ =>
      destruct a as [o2 |] eqn:E2; [| discriminate] end.
    injection E as <-.
    destruct ((get σ ∘ ρ) x) as [[t | | |] |] eqn:Q;
      [apply E_con_cons with t; auto | ..];
      injection E1 as <-; apply E_con_skip; auto; intros t'; rewrite Q; discriminate.
Qed.

Theorem enumerate_sound n : forall R ρ p t σ o,
  enumerate n R ρ p t σ = Some o -> evaluates R ρ p t σ o.
Proof.
  induction n as [| n IH]; intros R ρ p t σ o E; [discriminate |].
  destruct p as [x | f ps | F ps | p q | x p | p g | p x e | p p' x
                | xs ins outs small b ys | i ys]; cbn [enumerate] in E.
  - injection E as <-. constructor.
  - destruct (dest t) as [g ts] eqn:D. destruct (_ && _) eqn:Q.
    + apply andb_prop in Q as [Q1 Q2]. apply Nat.eqb_eq in Q1, Q2. subst.
      eapply E_op; eauto. eapply enumerate_children_sound; [| exact E]. auto.
    + injection E as <-. eapply E_op_fail; [exact D |].
      apply andb_false_iff in Q as [Q | Q]; apply Nat.eqb_neq in Q; auto.
  - destruct (dest t) as [f ts] eqn:D. destruct (Nat.eqb _ _) eqn:Q.
    + apply Nat.eqb_eq in Q. eapply E_fun; eauto. eapply each_store_sound; [| exact E].
      apply enumerate_children_sound. auto.
    + injection E as <-. apply Nat.eqb_neq in Q. eapply E_fun_fail; eauto.
  - destruct (enumerate n R ρ p t σ) as [o1 |] eqn:E1; [| discriminate].
    destruct (enumerate n R ρ q t σ) as [o2 |] eqn:E2; [| discriminate].
    injection E as <-. constructor; auto.
  - destruct (enumerate n R _ p t _) as [o1 |] eqn:E1; [| discriminate].
    injection E as <-. eapply E_ex; eauto.
  - destruct (enumerate n R ρ p t σ) as [o1 |] eqn:E1; [| discriminate].
    injection E as <-. constructor. auto.
  - destruct (enumerate n R ρ p t σ) as [o1 |] eqn:E1; [| discriminate].
    injection E as <-. constructor. auto.
  - destruct (enumerate n R ρ p t σ) as [o1 |] eqn:E1; [| discriminate]. simpl in E.
    econstructor; [apply IH, E1 |]. eapply each_constraint_sound; [| exact E]. auto.
  - constructor. auto.
  - destruct (skipn i R) as [| d R'] eqn:D; [injection E as <-; now constructor |].
    econstructor; eauto.
Qed.

(** What it enumerates are the machine's answers. *)
Corollary enumerate_machine n p t o : enumerate n [] ρ0 p t empty = Some o -> init p t ⇓ o.
Proof. intros E. eapply evaluates_machine, enumerate_sound, E. Qed.
End BigStep.
