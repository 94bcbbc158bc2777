(** * The oracle for legality: [legal], extracted *)

From Coq Require Import List Bool.
From PyPM Require Import Names.
From PyPM.legality Require Import Execution Legal.

(** The conditions that a rewrite fails; [None] if what is rewritten is no graph. *)
Definition oracle_refusals (inputs : list (name * nat)) (before old new after : graph)
    (outputs : list name) : option (list condition) :=
  let w := Rewrite inputs before old new after outputs in
  if is_graph w then Some (refusals w) else None.

Definition oracle_call (symbol : nat) (shares : sharing) (writes : list nat)
    (switches draws acts : bool) (args : list name) : definition :=
  Call (Operator symbol shares writes switches draws acts) args.
