(** * Templates and their denotation

    A template is built of variables and operators; it serves as the right-hand side of a rule, and,
    read as a pattern, as its left-hand side.  Operators denote arbitrary functions. *)

From Coq Require Import List Bool PeanoNat.
Import ListNotations.
From PyPM Require Import Names Values Terms Guards Patterns Declarative.

Inductive template : Type :=
| TVar (x : name)
| TOp (f : op) (rs : list template)
| TFun (F : name) (rs : list template).

Section TemplateInd.
Variable P : template -> Prop.
Hypothesis HVar : forall x, P (TVar x).
Hypothesis HOp : forall f rs, Forall P rs -> P (TOp f rs).
Hypothesis HFun : forall F rs, Forall P rs -> P (TFun F rs).

Fixpoint template_ind' (r : template) : P r :=
  let fix go rs : Forall P rs :=
    match rs with
    | [] => Forall_nil P
    | r :: rs => Forall_cons r (template_ind' r) (go rs)
    end in
  match r with
  | TVar x => HVar x
  | TOp f rs => HOp f rs (go rs)
  | TFun F rs => HFun F rs (go rs)
  end.
End TemplateInd.

(** A template as a pattern. *)
Fixpoint pattern_of {Δ : Domain} (r : template) : pattern :=
  match r with
  | TVar x => PVar x
  | TOp f rs => POp f (map pattern_of rs)
  | TFun F rs => PFun F (map pattern_of rs)
  end.

Section Denotation.
Context {Δ : Domain} {T : Type} {Σ : Structure T}.

(** What operators denote: any functions on any type of values.  (For partial operators, take an
    option type.) *)
Context {V : Type}.
Variable sem : op -> list V -> V.

(** What terms denote. *)
Variable den : T -> V.

(** A denotation is compositional if it is given by [sem]. *)
Definition compositional : Prop :=
  forall t f ts, dest t = (f, ts) -> den t = sem f (map den ts).

(** [⟦r⟧θ]: undefined if [θ] does not say what a variable is. *)
Fixpoint template_den (θ : env T) (r : template) : option V :=
  match r with
  | TVar x =>
      match θ x with
      | Some (VTerm t) => Some (den t)
      | _ => None
      end
  | TOp f rs => option_map (sem f) (sequence (map (template_den θ) rs))
  | TFun F rs =>
      match θ F with
      | Some (VOp f) => option_map (sem f) (sequence (map (template_den θ) rs))
      | _ => None
      end
  end.

(** A term that a template matches denotes what the template denotes. *)
Lemma matched_children_den θ rs :
  Forall (fun r => forall t, [] ⊢ pattern_of r @ θ ≈ t -> template_den θ r = Some (den t)) rs ->
  forall ts, [] ⊢ map pattern_of rs @ θ ≈* ts ->
  sequence (map (template_den θ) rs) = Some (map den ts).
Proof.
  induction 1 as [| r rs Hr _ IH]; intros ts M; simpl in M; inversion M; subst; simpl; auto.
  erewrite Hr by eassumption. erewrite IH by eassumption. reflexivity.
Qed.

Lemma matched_den (Comp : compositional) θ r :
  forall t, [] ⊢ pattern_of r @ θ ≈ t -> template_den θ r = Some (den t).
Proof.
  induction r as [x | f rs IH | F rs IH] using template_ind'; intros t M; simpl in M;
    inversion M; subst; simpl.
  - match goal with E : θ x = _ |- _ => now rewrite E end.
  - erewrite matched_children_den by eassumption. simpl. f_equal. symmetry. now apply Comp.
  - match goal with E : θ F = _ |- _ => rewrite E end.
    erewrite matched_children_den by eassumption. simpl. f_equal. symmetry. now apply Comp.
Qed.

(** ** Rules *)

(** The law of a rule [p → r]: every match of its pattern denotes what its right-hand side does, where
    that denotes.  The pattern may be any. *)
Definition law (p : pattern) (r : template) : Prop :=
  forall θ t v, [] ⊢ p @ θ ≈ t -> template_den θ r = Some v -> v = den t.

(** The same of a rule with several outputs, which are matched under one environment. *)
Definition laws (ps : list pattern) (rs : list template) : Prop :=
  forall θ ts vs, [] ⊢ ps @ θ ≈* ts -> sequence (map (template_den θ) rs) = Some vs ->
  vs = map den ts.

Lemma law_laws p r : law p r <-> laws [p] [r].
Proof.
  split; intros H.
  - intros θ ts vs M R. inversion M as [| ? ? ? ? t ts' M1 M2]; subst. inversion M2; subst.
    simpl in *. destruct (template_den θ r) as [v |] eqn:E; [| discriminate].
    injection R as <-. f_equal. exact (H θ t v M1 E).
  - intros θ t v M R. assert (E : [v] = map den [t]); [| now injection E].
    apply (H θ [t] [v]); [repeat constructor; exact M |]. simpl. now rewrite R.
Qed.

(** A rule with alternates has its law if it has it with each of them. *)
Lemma law_alternates p q r : law (PAlt p q) r <-> law p r /\ law q r.
Proof.
  split.
  - intros H. split; intros θ t v M; apply (H θ t v); [now apply M_alt_l | now apply M_alt_r].
  - intros [Hp Hq] θ t v M R. inversion M; subst; eauto.
Qed.

(** The equation of a rule [lhs; guard(g) → rhs] between templates: wherever the guard is true and both
    sides denote, they denote the same.  It speaks of values, not of matches. *)
Definition equation (lhs : template) (g : guard) (rhs : template) : Prop :=
  forall θ v w, geval θ g = Some true ->
    template_den θ lhs = Some v -> template_den θ rhs = Some w -> v = w.

Theorem equation_law (Comp : compositional) lhs g rhs :
  equation lhs g rhs -> law (PGuard (pattern_of lhs) g) rhs.
Proof.
  intros Eq θ t w M R. inversion M; subst. symmetry. eapply Eq; eauto using matched_den.
Qed.
End Denotation.
