(** * What a match is

    [R ⊢ p @ θ ≈ t]: under the recursion context [R], the pattern [p] matches the term [t] with the
    (partial) environment [θ].  The annotations of a [μ] play no role here. *)

From Coq Require Import List Bool PeanoNat.
Import ListNotations.
From PyPM Require Import Names Values Terms Guards Patterns.

Reserved Notation "R ⊢ p @ θ ≈ t" (at level 70, p at next level, θ at next level, t at next level).
Reserved Notation "R ⊢ ps @ θ ≈* ts" (at level 70, ps at next level, θ at next level, ts at next level).

Section Declarative.
Context {Δ : Domain} {T : Type} {Σ : Structure T}.

Inductive matches : recursion -> pattern -> env T -> T -> Prop :=
(* [var]: a variable matches the term it stands for. *)
| M_var R x θ t :
    θ x = Some (VTerm t) ->
    R ⊢ PVar x @ θ ≈ t
(* [op]: the operator is the one written, and the children match one by one. *)
| M_op R f ps θ t ts :
    dest t = (f, ts) -> R ⊢ ps @ θ ≈* ts ->
    R ⊢ POp f ps @ θ ≈ t
(* [fun]: the operator is the one that the operator variable stands for. *)
| M_fun R F ps θ t f ts :
    dest t = (f, ts) -> θ F = Some (VOp f) -> R ⊢ ps @ θ ≈* ts ->
    R ⊢ PFun F ps @ θ ≈ t
(* [altL]: the first alternate matches. *)
| M_alt_l R p q θ t :
    R ⊢ p @ θ ≈ t ->
    R ⊢ PAlt p q @ θ ≈ t
(* [altR]: the second alternate matches. *)
| M_alt_r R p q θ t :
    R ⊢ q @ θ ≈ t ->
    R ⊢ PAlt p q @ θ ≈ t
(* [ex]: the body matches for some value of the local variable. *)
| M_ex R x p θ t v :
    R ⊢ p @ update θ x v ≈ t ->
    R ⊢ PEx x p @ θ ≈ t
(* [guard]: the pattern matches and the guard is true, not merely unknown. *)
| M_guard R p g θ t :
    R ⊢ p @ θ ≈ t -> geval θ g = Some true ->
    R ⊢ PGuard p g @ θ ≈ t
(* [let]: the pattern matches and the name stands for the value of the expression. *)
| M_let R p x e θ t v :
    R ⊢ p @ θ ≈ t -> eval θ e = Some v -> θ x = Some v ->
    R ⊢ PLet p x e @ θ ≈ t
(* [match]: the pattern matches, and the term that the name stands for matches another one. *)
| M_match R p p' x θ t t' :
    R ⊢ p @ θ ≈ t -> θ x = Some (VTerm t') -> R ⊢ p' @ θ ≈ t' ->
    R ⊢ PMatch p p' x @ θ ≈ t
(* [mu]: the body matches in the environment of its parameters, and may call itself. *)
| M_mu R xs ins outs small b ys θ t :
    Def xs ins outs small b :: R ⊢ b @ callenv xs ys θ ≈ t ->
    R ⊢ PMu xs ins outs small b ys @ θ ≈ t
(* [call]: the body of the [i]-th enclosing [μ] matches, in the context of that [μ]. *)
| M_call R i d R' ys θ t :
    skipn i R = d :: R' -> d :: R' ⊢ d_body d @ callenv (d_params d) ys θ ≈ t ->
    R ⊢ PCall i ys @ θ ≈ t
where "R ⊢ p @ θ ≈ t" := (matches R p θ t)

with matches_all : recursion -> list pattern -> env T -> list T -> Prop :=
| M_nil R θ :
    R ⊢ [] @ θ ≈* []
| M_cons R p ps θ t ts :
    R ⊢ p @ θ ≈ t -> R ⊢ ps @ θ ≈* ts ->
    R ⊢ p :: ps @ θ ≈* t :: ts
where "R ⊢ ps @ θ ≈* ts" := (matches_all R ps θ ts).

Scheme matches_mut := Induction for matches Sort Prop
  with matches_all_mut := Induction for matches_all Sort Prop.
Combined Scheme matches_mutind from matches_mut, matches_all_mut.

(** ** Monotonicity: a match is still a match when more is known *)

Lemma matches_mono_mut :
  (forall R p θ t, R ⊢ p @ θ ≈ t -> forall θ', θ ⊆ θ' -> R ⊢ p @ θ' ≈ t) /\
  (forall R ps θ ts, R ⊢ ps @ θ ≈* ts -> forall θ', θ ⊆ θ' -> R ⊢ ps @ θ' ≈* ts).
Proof.
  apply (matches_mutind
    (fun R p θ t _ => forall θ', θ ⊆ θ' -> R ⊢ p @ θ' ≈ t)
    (fun R ps θ ts _ => forall θ', θ ⊆ θ' -> R ⊢ ps @ θ' ≈* ts));
    intros; solve [econstructor; eauto using update_extends, callenv_extends, geval_mono, eval_mono].
Qed.

Theorem matches_mono R p θ θ' t : R ⊢ p @ θ ≈ t -> θ ⊆ θ' -> R ⊢ p @ θ' ≈ t.
Proof. intros H. now apply (proj1 matches_mono_mut). Qed.

(** Hence environments that agree pointwise are interchangeable. *)
Corollary matches_ext R p θ θ' t : (forall x, θ x = θ' x) -> R ⊢ p @ θ ≈ t -> R ⊢ p @ θ' ≈ t.
Proof. intros E H. eapply matches_mono; eauto. intros x v. now rewrite E. Qed.

Lemma matches_all_length R ps θ ts : R ⊢ ps @ θ ≈* ts -> length ps = length ts.
Proof. induction 1; simpl; congruence. Qed.
End Declarative.

Notation "R ⊢ p @ θ ≈ t" := (matches R p θ t).
Notation "R ⊢ ps @ θ ≈* ts" := (matches_all R ps θ ts).
