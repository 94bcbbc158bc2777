(** * The checker of equations of tensors, extracted *)

From PyPM.laws Require Import Expressions Polynomials Certificates.

(** [None] if an equation is accepted, or what is left of its difference. *)
Definition oracle_equation (a b : expr) : option expr :=
  if accepted a b then None else Some (reify (difference a b)).
