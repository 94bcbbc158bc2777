(** * The judge of logs of asynchronous references, extracted *)

From Coq Require Import List.
From PyPM Require Import Arefs.

(** [None] if a log is accepted, or the number of events before the first that is no step. *)
Definition oracle_ring (D N C : nat) (due : list nat) (es : list event) : option nat :=
  let due j := nth j due 0 in
  if accepted D N C due es then None else Some (fst (follow D N C due start es)).
