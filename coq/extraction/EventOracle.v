(** * The judge of logs of tasks that wait for events, extracted *)

From Coq Require Import List.
From PyPM Require Import Events.

(** [None] if a log is accepted, or the number of events before the first that is no step. *)
Definition oracle_tasks (W : nat) (waits notes queues : list (list nat)) (rank : list nat)
    (xs : list event) : option nat :=
  let N := length waits in
  let waits i := nth i waits nil in
  let notes i := nth i notes nil in
  let queue q := nth q queues nil in
  let rank i := nth i rank 0 in
  if accepted N W waits notes queue rank xs then None
  else Some (fst (follow N W waits notes queue rank start xs)).
