(** * Lock-step simulation between two term structures

    A relation between the terms of two structures that respects taking apart, equality tests and
    attributes is a simulation: the machine takes the same steps on related terms, and gives related
    answers in the same order. *)

From Coq Require Import List Bool PeanoNat.
Import ListNotations.
From PyPM Require Import Names Kleene Values Terms Guards Patterns Declarative Stores Machine Enumeration.

(** Both undefined, or both defined and related. *)
Definition option_rel {A B : Type} (r : A -> B -> Prop) (a : option A) (b : option B) : Prop :=
  match a, b with
  | Some a, Some b => r a b
  | None, None => True
  | _, _ => False
  end.

Lemma Forall2_length {A B} (r : A -> B -> Prop) l l' : Forall2 r l l' -> length l = length l'.
Proof. induction 1; simpl; congruence. Qed.

Section Values.
Context {Δ : Domain} {T U : Type}.
Variable r : T -> U -> Prop.

(** Related values: related terms at the same places. *)
Inductive value_rel : value T -> value U -> Prop :=
| VR_term t u : r t u -> value_rel (VTerm t) (VTerm u)
| VR_op f : value_rel (VOp f) (VOp f)
| VR_const c : value_rel (VConst c) (VConst c)
| VR_tuple vs ws : Forall2 value_rel vs ws -> value_rel (VTuple vs) (VTuple ws).

Lemma reify_rel v : forall w, value_rel v w -> reify v = reify w.
Proof.
  induction v as [t | f | c | vs IH] using value_ind'; intros w H; inversion H; subst; auto.
  simpl. f_equal. f_equal. clear H.
  match goal with F : Forall2 _ _ _ |- _ => induction F as [| v w vs ws Hvw _ IHvs]; auto end.
  inversion IH; subst. simpl. f_equal; auto.
Qed.

Lemma reify_all_rel vs ws : Forall2 value_rel vs ws -> map reify vs = map reify ws.
Proof. induction 1; simpl; f_equal; auto using reify_rel. Qed.

Lemma embed_rel d : value_rel (embed d) (embed d).
Proof.
  revert d. fix IH 1. intros [c | ds]; constructor.
  induction ds as [| d ds IHds]; constructor; [apply IH | exact IHds].
Qed.

Lemma sequence_rel {E A B} (f : E -> option A) (g : E -> option B) q es :
  Forall (fun e => option_rel q (f e) (g e)) es ->
  option_rel (Forall2 q) (sequence (map f es)) (sequence (map g es)).
Proof.
  induction 1 as [| e es He _ IH]; simpl; [constructor |].
  destruct (f e), (g e); simpl in *; try tauto.
  destruct (sequence (map f es)), (sequence (map g es)); simpl in *; auto.
Qed.

Lemma truth_rel v w : value_rel v w -> truth v = truth w.
Proof. destruct 1; reflexivity. Qed.

Lemma value_less_rel v w v' w' :
  value_rel v w -> value_rel v' w' -> value_less v v' = value_less w w'.
Proof. intros H H'. unfold value_less. now rewrite (reify_rel v w H), (reify_rel v' w' H'). Qed.
End Values.

(** ** Simulations *)

(** Related values have related attributes, and operations give related results. *)
Record interpretations_agree {Δ : Domain} {T U : Type} (r : T -> U -> Prop)
    (I : interpretation T) (J : interpretation U) : Prop := {
  agree_attribute : forall α v w, value_rel r v w ->
    option_rel (value_rel r) (attribute_in I α v) (attribute_in J α w);
  agree_operation : forall π vs ws, Forall2 (value_rel r) vs ws ->
    option_rel (value_rel r) (operation_in I π vs) (operation_in J π ws)
}.

(** Operations on data agree, whatever they are. *)
Lemma on_data_rel {Δ : Domain} {T U : Type} (r : T -> U -> Prop) f vs ws :
  Forall2 (value_rel r) vs ws -> option_rel (value_rel r) (on_data f vs) (on_data f ws).
Proof.
  intros F. unfold on_data. rewrite (reify_all_rel r _ _ F).
  destruct (sequence (map reify ws)) as [ds |]; simpl; auto.
  destruct (f ds) as [d |]; simpl; auto using embed_rel.
Qed.

Class Simulation {Δ : Domain} {T U : Type} (Σ : Structure T) (Σ' : Structure U)
    (r : T -> U -> Prop) : Prop := {
  sim_dest : forall t u, r t u ->
    fst (dest t) = fst (dest u) /\ Forall2 r (snd (dest t)) (snd (dest u));
  sim_teqb : forall t u t' u', r t u -> r t' u' -> teqb t t' = teqb u u';
  sim_meaning : interpretations_agree r (meaning (Structure := Σ)) (meaning (Structure := Σ'))
}.

Section Simulation.
Context {Δ : Domain} {T U : Type} {Σ : Structure T} {Σ' : Structure U} {r : T -> U -> Prop}.
Context {Sim : Simulation Σ Σ' r}.

Lemma veqb_rel_tuple vs :
  Forall (fun v => forall v' w w',
    value_rel r v w -> value_rel r v' w' -> veqb v v' = veqb w w') vs ->
  forall vs' ws ws', Forall2 (value_rel r) vs ws -> Forall2 (value_rel r) vs' ws' ->
  veqb (VTuple vs) (VTuple vs') = veqb (VTuple ws) (VTuple ws').
Proof.
  unfold veqb. induction 1 as [| v vs Hv _ IH]; intros vs' ws ws' F F';
    inversion F; subst; destruct F'; auto.
  rewrite !value_eqb_cons. f_equal; auto.
Qed.

Lemma veqb_rel v : forall v' w w',
  value_rel r v w -> value_rel r v' w' -> veqb v v' = veqb w w'.
Proof.
  induction v as [t | f | c | vs IH] using value_ind'; intros v' w w' H H';
    inversion H; subst; inversion H'; subst; try reflexivity.
  - now apply sim_teqb.
  - now apply veqb_rel_tuple.
Qed.

Lemma value_equal_rel_tuple vs :
  Forall (fun v => forall v' w w',
    value_rel r v w -> value_rel r v' w' -> value_equal teqb v v' = value_equal teqb w w') vs ->
  forall vs' ws ws', Forall2 (value_rel r) vs ws -> Forall2 (value_rel r) vs' ws' ->
  value_equal teqb (VTuple vs) (VTuple vs') = value_equal teqb (VTuple ws) (VTuple ws').
Proof.
  induction 1 as [| v vs Hv _ IH]; intros vs' ws ws' F F';
    inversion F; subst; destruct F'; auto.
  rewrite !value_equal_cons. f_equal; auto.
Qed.

Lemma value_equal_rel v : forall v' w w',
  value_rel r v w -> value_rel r v' w' -> value_equal teqb v v' = value_equal teqb w w'.
Proof.
  induction v as [t | f | c | vs IH] using value_ind'; intros v' w w' H H';
    inversion H; subst; inversion H'; subst; try reflexivity.
  - simpl. f_equal. now apply sim_teqb.
  - now apply value_equal_rel_tuple.
Qed.

(** ** Related environments give related meanings *)

Definition env_rel (θ : env T) (θ' : env U) : Prop :=
  forall x, option_rel (value_rel r) (θ x) (θ' x).

Lemma eval_rel θ θ' e : env_rel θ θ' -> option_rel (value_rel r) (eval θ e) (eval θ' e).
Proof.
  intros H. induction e as [c | x | x α | π es IH | es IH] using expr_ind'; simpl.
  - constructor.
  - apply H.
  - specialize (H x). destruct (θ x), (θ' x); simpl in *; try tauto. now apply sim_meaning.
  - apply sequence_rel in IH.
    destruct (sequence (map (eval θ) es)), (sequence (map (eval θ') es)); simpl in *; try tauto.
    now apply sim_meaning.
  - apply sequence_rel in IH.
    destruct (sequence (map (eval θ) es)), (sequence (map (eval θ') es)); simpl in *; try tauto.
    now constructor.
Qed.

Lemma compare_rel (f : value T -> value T -> option bool) (g : value U -> value U -> option bool) :
  (forall v v' w w', value_rel r v w -> value_rel r v' w' -> f v v' = g w w') ->
  forall a a' b b', option_rel (value_rel r) a b -> option_rel (value_rel r) a' b' ->
  compare f a a' = compare g b b'.
Proof.
  intros H a a' b b'. unfold compare, option_bind.
  destruct a, b, a', b'; simpl; try tauto. apply H.
Qed.

Lemma geval_rel θ θ' g : env_rel θ θ' -> geval θ g = geval θ' g.
Proof.
  intros H. induction g as [| e | e1 e2 | e1 e2 | g1 IH1 g2 IH2 | g1 IH1 g2 IH2 | g IH]; simpl.
  - reflexivity.
  - pose proof (eval_rel _ _ e H) as E.
    destruct (eval θ e), (eval θ' e); simpl in *; try tauto. now apply (truth_rel r).
  - apply compare_rel; auto using eval_rel. apply value_equal_rel.
  - apply compare_rel; auto using eval_rel. intros v v' w w'. apply (value_less_rel r).
  - congruence.
  - congruence.
  - congruence.
Qed.

(** ** Related stores, actions and configurations *)

Definition cell_rel (c : loc * value T) (d : loc * value U) : Prop :=
  fst c = fst d /\ value_rel r (snd c) (snd d).

Definition store_rel (σ : store T) (σ' : store U) : Prop :=
  next σ = next σ' /\ Forall2 cell_rel (cells σ) (cells σ').

Inductive action_rel : action T -> action U -> Prop :=
| AR_match R ρ p t u : r t u -> action_rel (AMatch R ρ p t) (AMatch R ρ p u)
| AR_guard ρ g : action_rel (AGuard ρ g) (AGuard ρ g)
| AR_let ρ x e : action_rel (ALet ρ x e) (ALet ρ x e)
| AR_check l : action_rel (ACheck l) (ACheck l)
| AR_matchC R ρ p x : action_rel (AMatchC R ρ p x) (AMatchC R ρ p x).

Definition config_rel (c : config T) (d : config U) : Prop :=
  store_rel (fst c) (fst d) /\ Forall2 action_rel (snd c) (snd d).

Lemma get_rel σ σ' l : store_rel σ σ' -> option_rel (value_rel r) (get σ l) (get σ' l).
Proof.
  intros [_ H]. unfold get. induction H as [| [l1 v] [l2 w] cs ds [E V] _ IH]; simpl in *; auto.
  subst. destruct (loc_eqb l l2); auto.
Qed.

Lemma compose_rel σ σ' ρ : store_rel σ σ' -> env_rel (get σ ∘ ρ) (get σ' ∘ ρ).
Proof. intros H x. unfold compose. destruct (ρ x); simpl; auto using get_rel. Qed.

Lemma set_rel σ σ' l v w :
  store_rel σ σ' -> value_rel r v w -> store_rel (set σ l v) (set σ' l w).
Proof. intros [N F] V. split; simpl; auto. constructor; auto. now split. Qed.

Lemma bind_name_rel σ σ' ρ x v w :
  store_rel σ σ' -> value_rel r v w ->
  option_rel store_rel (bind_name σ ρ x v) (bind_name σ' ρ x w).
Proof.
  intros H V. unfold bind_name, bind. destruct (ρ x) as [l |]; simpl; auto.
  pose proof (get_rel σ σ' l H) as G.
  destruct (get σ l) as [v' |], (get σ' l) as [w' |]; simpl in G; try tauto.
  - rewrite (veqb_rel _ _ _ _ G V). destruct (veqb w' w); simpl; auto.
  - simpl. now apply set_rel.
Qed.

Lemma children_rel R ρ k k' ps : forall ts us,
  Forall2 r ts us -> Forall2 action_rel k k' ->
  Forall2 action_rel (match_children R ρ ps ts ++ k) (match_children R ρ ps us ++ k').
Proof.
  induction ps as [| p ps IH]; intros ts us F K; simpl; auto.
  inversion F; subst; simpl; auto. constructor; auto. now constructor.
Qed.

Lemma config_rel_one σ σ' k k' :
  store_rel σ σ' -> Forall2 action_rel k k' -> Forall2 config_rel [(σ, k)] [(σ', k')].
Proof. intros H K. constructor; [now split | constructor]. Qed.

Lemma continue_rel k k' o o' :
  Forall2 action_rel k k' -> option_rel store_rel o o' ->
  Forall2 config_rel (continue k o) (continue k' o').
Proof.
  intros K H. destruct o, o'; simpl in *; try tauto; auto using config_rel_one.
Qed.

Hint Resolve config_rel_one continue_rel children_rel bind_name_rel : core.
Hint Constructors Forall2 action_rel value_rel : core.

Lemma match_pattern_rel σ σ' R ρ p t u k k' :
  store_rel σ σ' -> r t u -> Forall2 action_rel k k' ->
  Forall2 config_rel (match_pattern σ R ρ p t k) (match_pattern σ' R ρ p u k').
Proof.
  intros H Htu K. destruct (sim_dest t u Htu) as [Ef Ec].
  destruct p as [x | f ps | F ps | p q | x p | p g | p x e | p p' x | xs ins outs small b ys | i ys];
    simpl; auto.
  - (* op *) destruct (dest t) as [f1 ts], (dest u) as [f2 us]. simpl in *. subst.
    rewrite (Forall2_length _ _ _ Ec). destruct (_ && _); auto.
  - (* fun *) destruct (dest t) as [f1 ts], (dest u) as [f2 us]. simpl in *. subst.
    rewrite (Forall2_length _ _ _ Ec). destruct (Nat.eqb _ _); auto.
  - (* alt *) constructor; auto. split; simpl; auto.
  - (* ex *) rewrite (proj1 H). apply config_rel_one; auto. split; simpl; [f_equal |]; apply H.
  - (* call *) destruct (skipn i R); auto.
Qed.

Theorem expand_rel c d : config_rel c d -> Forall2 config_rel (expand c) (expand d).
Proof.
  destruct c as [σ k], d as [σ' k']. intros [H K]. simpl in H, K.
  inversion K as [| a b l l' A K']; subst; clear K; [constructor |].
  destruct A as [R ρ p t u Htu | ρ g | ρ x e | l1 | R ρ p x]; simpl.
  - now apply match_pattern_rel.
  - rewrite (geval_rel (get σ ∘ ρ) (get σ' ∘ ρ)) by now apply compose_rel.
    destruct (geval _ g) as [[] |]; auto.
  - pose proof (eval_rel _ _ e (compose_rel σ σ' ρ H)) as E.
    destruct (eval (get σ ∘ ρ) e), (eval (get σ' ∘ ρ) e); simpl in E; try tauto; auto.
  - pose proof (get_rel σ σ' l1 H) as G.
    destruct (get σ l1), (get σ' l1); simpl in G; try tauto; auto.
  - pose proof (compose_rel σ σ' ρ H x) as G.
    destruct ((get σ ∘ ρ) x), ((get σ' ∘ ρ) x); simpl in G; try tauto; auto.
    destruct G; auto.
Qed.

(** ** Whole runs *)

Theorem answers_rel (st : state T) o :
  st ⇓ o -> forall st', Forall2 config_rel st st' ->
  exists o', st' ⇓ o' /\ Forall2 store_rel o o'.
Proof.
  induction 1 as [| σ stk o _ IH | st o Run _ IH]; intros st' F.
  - inversion F; subst. exists []. split; constructor.
  - inversion F as [| ? [σ' k] ? ? [H K] F']; subst. simpl in *. inversion K; subst.
    destruct (IH _ F') as (o' & ? & ?). exists (σ' :: o'). split; constructor; auto.
  - destruct st as [| [σ [| a k]] stk]; try discriminate.
    inversion F as [| ? [σ' k'] ? stk' C F']; subst.
    pose proof C as [_ K]. simpl in K. inversion K; subst.
    destruct (IH (step ((σ', y :: l') :: stk'))) as (o' & ? & ?).
    { apply Forall2_app; auto. now apply expand_rel. }
    exists o'. split; auto. now apply answers_step.
Qed.

Corollary init_rel p t u o :
  r t u -> init p t ⇓ o -> exists o', init p u ⇓ o' /\ Forall2 store_rel o o'.
Proof.
  intros H R. apply (answers_rel _ _ R). constructor; [| constructor].
  split; [split; [reflexivity | constructor] |]. repeat constructor. exact H.
Qed.
End Simulation.
