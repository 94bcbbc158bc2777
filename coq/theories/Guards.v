(** * Expressions and guards

    Expressions are partial.  Guards are three-valued, with Kleene's connectives, and hold if they are
    [Some true].  All of it is monotone: knowing more of the environment never changes an answer, it
    only adds answers. *)

From Coq Require Import List Bool PeanoNat.
Import ListNotations.
From PyPM Require Import Names Kleene Values Terms.

(** ** Syntax *)

Section Syntax.
Context {Δ : Domain}.

Inductive expr : Type :=
| EConst (c : const)
| EVar (x : name)
| EAttr (x : name) (α : attr)
| EPrim (π : prim) (es : list expr)
| ETuple (es : list expr).

Inductive guard : Type :=
| GTrue
| GExpr (e : expr)
| GEq (e1 e2 : expr)
| GLt (e1 e2 : expr)
| GAnd (g1 g2 : guard)
| GOr (g1 g2 : guard)
| GNot (g : guard).

(** Free variables. *)
Fixpoint expr_vars (e : expr) : list name :=
  match e with
  | EConst _ => []
  | EVar x | EAttr x _ => [x]
  | EPrim _ es | ETuple es => flat_map expr_vars es
  end.

Fixpoint guard_vars (g : guard) : list name :=
  match g with
  | GTrue => []
  | GExpr e => expr_vars e
  | GEq e1 e2 | GLt e1 e2 => expr_vars e1 ++ expr_vars e2
  | GAnd g1 g2 | GOr g1 g2 => guard_vars g1 ++ guard_vars g2
  | GNot g => guard_vars g
  end.

Section ExprInd.
Variable P : expr -> Prop.
Hypothesis HConst : forall c, P (EConst c).
Hypothesis HVar : forall x, P (EVar x).
Hypothesis HAttr : forall x α, P (EAttr x α).
Hypothesis HPrim : forall π es, Forall P es -> P (EPrim π es).
Hypothesis HTuple : forall es, Forall P es -> P (ETuple es).

Fixpoint expr_ind' (e : expr) : P e :=
  let fix go es : Forall P es :=
    match es with
    | [] => Forall_nil P
    | e :: es => Forall_cons e (expr_ind' e) (go es)
    end in
  match e with
  | EConst c => HConst c
  | EVar x => HVar x
  | EAttr x α => HAttr x α
  | EPrim π es => HPrim π es (go es)
  | ETuple es => HTuple es (go es)
  end.
End ExprInd.
End Syntax.

(** ** Meaning *)

Section Meaning.
Context {Δ : Domain} {T : Type} {Σ : Structure T}.

(** An environment [θ] is a partial map from names to values. *)
Definition env := name -> option (value T).

(** [⟦e⟧θ] *)
Fixpoint eval (θ : env) (e : expr) : option (value T) :=
  match e with
  | EConst c => Some (VConst c)
  | EVar x => θ x
  | EAttr x α => option_bind (θ x) (attribute α)
  | EPrim π es => option_bind (sequence (map (eval θ) es)) (operation π)
  | ETuple es => option_map VTuple (sequence (map (eval θ) es))
  end.

(** A partial relation between the values of two expressions. *)
Definition compare (r : value T -> value T -> option bool) (a b : option (value T)) :=
  option_bind a (fun v => option_bind b (r v)).

(** [⟦g⟧θ] *)
Fixpoint geval (θ : env) (g : guard) : option bool :=
  match g with
  | GTrue => Some true
  | GExpr e => option_bind (eval θ e) truth
  | GEq e1 e2 => compare (value_equal teqb) (eval θ e1) (eval θ e2)
  | GLt e1 e2 => compare value_less (eval θ e1) (eval θ e2)
  | GAnd g1 g2 => kleene_and (geval θ g1) (geval θ g2)
  | GOr g1 g2 => kleene_or (geval θ g1) (geval θ g2)
  | GNot g => kleene_not (geval θ g)
  end.

(** *** Only the free variables matter *)

Lemma eval_agree θ θ' e :
  (forall x, In x (expr_vars e) -> θ x = θ' x) -> eval θ e = eval θ' e.
Proof.
  induction e as [c | x | x α | π es IH | es IH] using expr_ind'; simpl; intros H; auto.
  - now rewrite (H x (or_introl eq_refl)).
  - do 2 f_equal. apply map_ext_in. intros e I. rewrite Forall_forall in IH.
    apply IH; auto. intros x Ix. apply H, in_flat_map. eauto.
  - do 2 f_equal. apply map_ext_in. intros e I. rewrite Forall_forall in IH.
    apply IH; auto. intros x Ix. apply H, in_flat_map. eauto.
Qed.

Lemma geval_agree θ θ' g :
  (forall x, In x (guard_vars g) -> θ x = θ' x) -> geval θ g = geval θ' g.
Proof.
  induction g as [| e | e1 e2 | e1 e2 | g1 IH1 g2 IH2 | g1 IH1 g2 IH2 | g IH]; simpl; intros H; auto.
  - now rewrite (eval_agree θ θ' e H).
  - rewrite (eval_agree θ θ' e1), (eval_agree θ θ' e2); auto using in_or_app.
  - rewrite (eval_agree θ θ' e1), (eval_agree θ θ' e2); auto using in_or_app.
  - rewrite IH1, IH2; auto using in_or_app.
  - rewrite IH1, IH2; auto using in_or_app.
  - now rewrite IH.
Qed.

(** *** Monotonicity *)

Lemma eval_mono θ θ' : θ ⊆ θ' -> forall e v, eval θ e = Some v -> eval θ' e = Some v.
Proof.
  intros L e. induction e as [c | x | x α | π es IH | es IH] using expr_ind'; simpl; intros v; auto.
  - destruct (θ x) eqn:E; [| discriminate]. now rewrite (L _ _ E).
  - destruct (sequence (map (eval θ) es)) as [vs |] eqn:E; [| discriminate].
    now rewrite (sequence_mono _ _ _ IH _ E).
  - destruct (sequence (map (eval θ) es)) as [vs |] eqn:E; [| discriminate].
    now rewrite (sequence_mono _ _ _ IH _ E).
Qed.

Lemma compare_mono r (a a' b b' : option (value T)) c :
  (forall v, a = Some v -> a' = Some v) -> (forall v, b = Some v -> b' = Some v) ->
  compare r a b = Some c -> compare r a' b' = Some c.
Proof.
  intros Ha Hb. unfold compare, option_bind. destruct a, b; try discriminate.
  now rewrite (Ha _ eq_refl), (Hb _ eq_refl).
Qed.

Lemma geval_mono θ θ' : θ ⊆ θ' -> forall g b, geval θ g = Some b -> geval θ' g = Some b.
Proof.
  intros L g.
  induction g as [| e | e1 e2 | e1 e2 | g1 IH1 g2 IH2 | g1 IH1 g2 IH2 | g IH]; simpl; intros b; auto.
  - destruct (eval θ e) as [v |] eqn:E; [| discriminate]. now rewrite (eval_mono _ _ L _ _ E).
  - apply compare_mono; intros v; now apply eval_mono.
  - apply compare_mono; intros v; now apply eval_mono.
  - apply kleene_and_mono; auto.
  - apply kleene_or_mono; auto.
  - destruct (geval θ g) as [a |]; [| discriminate]. now rewrite (IH a eq_refl).
Qed.
End Meaning.

Arguments env {Δ} T.
