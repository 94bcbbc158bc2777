(** * Patterns *)

From Coq Require Import List Bool PeanoNat.
Import ListNotations.
From PyPM Require Import Names Values Terms Guards.

Section Patterns.
Context {Δ : Domain}.

(** A recursive pattern [PMu xs ins outs small b ys] is [(μ(xs; I; O; B). b)(ys)].  Its annotations
    list parameters: those that must be bound on entry ([ins]), those that are bound on exit ([outs]),
    and those that are left bound to terms no larger than the subject ([small]).  The body sees the
    variables of its own parameter list only.  A call [PCall i ys] names its pattern by the number of
    [μ]s between the call and the binder. *)
Inductive pattern : Type :=
| PVar (x : name)                                       (** [x] *)
| POp (f : op) (ps : list pattern)                      (** [f(p̄)] *)
| PFun (F : name) (ps : list pattern)                   (** [F(p̄)], [F] a variable *)
| PAlt (p q : pattern)                                  (** [p ∥ q] *)
| PEx (x : name) (p : pattern)                          (** [∃x. p] *)
| PGuard (p : pattern) (g : guard)                      (** [p; guard(g)] *)
| PLet (p : pattern) (x : name) (e : expr)              (** [p; let(x = e)] *)
| PMatch (p p' : pattern) (x : name)                    (** [p; (p' ≈ x)] *)
| PMu (xs ins outs small : list name) (b : pattern) (ys : list name)
| PCall (i : nat) (ys : list name).

Section PatternInd.
Variable P : pattern -> Prop.
Hypothesis HVar : forall x, P (PVar x).
Hypothesis HOp : forall f ps, Forall P ps -> P (POp f ps).
Hypothesis HFun : forall F ps, Forall P ps -> P (PFun F ps).
Hypothesis HAlt : forall p q, P p -> P q -> P (PAlt p q).
Hypothesis HEx : forall x p, P p -> P (PEx x p).
Hypothesis HGuard : forall p g, P p -> P (PGuard p g).
Hypothesis HLet : forall p x e, P p -> P (PLet p x e).
Hypothesis HMatch : forall p p' x, P p -> P p' -> P (PMatch p p' x).
Hypothesis HMu : forall xs ins outs small b ys, P b -> P (PMu xs ins outs small b ys).
Hypothesis HCall : forall i ys, P (PCall i ys).

(** Induction that reaches the children of operator patterns. *)
Fixpoint pattern_ind' (p : pattern) : P p :=
  let fix go ps : Forall P ps :=
    match ps with
    | [] => Forall_nil P
    | p :: ps => Forall_cons p (pattern_ind' p) (go ps)
    end in
  match p with
  | PVar x => HVar x
  | POp f ps => HOp f ps (go ps)
  | PFun F ps => HFun F ps (go ps)
  | PAlt p q => HAlt p q (pattern_ind' p) (pattern_ind' q)
  | PEx x p => HEx x p (pattern_ind' p)
  | PGuard p g => HGuard p g (pattern_ind' p)
  | PLet p x e => HLet p x e (pattern_ind' p)
  | PMatch p p' x => HMatch p p' x (pattern_ind' p) (pattern_ind' p')
  | PMu xs ins outs small b ys => HMu xs ins outs small b ys (pattern_ind' b)
  | PCall i ys => HCall i ys
  end.
End PatternInd.

(** ** Recursion contexts *)

(** A definition is a [μ] without its arguments. *)
Record definition : Type := Def {
  d_params : list name;
  d_in : list name;
  d_out : list name;
  d_small : list name;
  d_body : pattern
}.

(** The enclosing [μ]s, innermost first.  [skipn i R] is [drop i R]. *)
Definition recursion := list definition.

Lemma skipn_nth_error i : forall (R : recursion) d R',
  skipn i R = d :: R' -> nth_error R i = Some d.
Proof.
  induction i as [| i IH]; intros [| d0 R] d R' E; simpl in *; try discriminate; [congruence | eauto].
Qed.

(** ** Analyses

    The static analyses thread a state through children, from left to right.  They share the two
    functions below, so that lemmas about lists of patterns apply to all of them. *)

Section Thread.
Context {A : Type} (f : A -> pattern -> A) (c : A -> pattern -> bool).

(** The state after all patterns. *)
Fixpoint thread (a : A) (ps : list pattern) : A :=
  match ps with
  | [] => a
  | p :: ps => thread (f a p) ps
  end.

(** Every pattern passes the check in the state before it. *)
Fixpoint thread_check (a : A) (ps : list pattern) : bool :=
  match ps with
  | [] => true
  | p :: ps => c a p && thread_check (f a p) ps
  end.
End Thread.
End Patterns.
