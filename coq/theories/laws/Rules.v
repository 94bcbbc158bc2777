(** * Rules whose equations have certificates

    A rule has its law if both sides are read as index notation, place by place, and every pair of what is
    read is accepted.  That the sides are read right is a hypothesis. *)

From Coq Require Import List Bool ZArith.
Import ListNotations.
From PyPM Require Import Names Values Terms Guards Patterns Declarative Templates.
From PyPM.laws Require Import Structures Expressions Certificates.

Section Rules.
Context {Δ : Domain} {T V : Type} {Σ : Structure T} (sem : op -> list V -> V) (den : T -> V).
Context {A : structure} {P : Type}.
Variable element : V -> P -> A.    (* of a tensor at a place *)

(** Wherever the guard is true and both sides denote, each place is read by some pair, which is defined there. *)
Definition read_as (cs : list (expr * expr)) (lhs : template) (g : guard) (rhs : template) : Prop :=
  forall θ v w p,
    geval θ g = Some true ->
    template_den sem den θ lhs = Some v -> template_den sem den θ rhs = Some w ->
    exists l r Inp I, In (l, r) cs /\ def Inp I l /\ def Inp I r /\
      element v p = Expressions.den Inp I l /\ element w p = Expressions.den Inp I r.

Lemma certified_equation cs lhs g rhs :
  (forall v w, (forall p, element v p = element w p) -> v = w) ->
  read_as cs lhs g rhs -> forallb (fun c => accepted (fst c) (snd c)) cs = true ->
  equation sem den lhs g rhs.
Proof.
  intros Ext R C θ v w G Hv Hw. apply Ext. intros p.
  destruct (R θ v w p G Hv Hw) as (l & r & Inp & I & Hc & Dl & Dr & -> & ->).
  rewrite forallb_forall in C. specialize (C _ Hc). now apply accepted_equal.
Qed.
End Rules.
