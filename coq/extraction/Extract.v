(** Writes [oracle.ml] and [oracle.mli] into the current directory.  Natural numbers are names,
    operators, sizes and counters: they become machine integers.  The integers of the language stay
    what they are in Coq, and do not overflow. *)

From Coq Require Import PeanoNat Extraction ExtrOcamlBasic ExtrOcamlNatInt ExtrOcamlNativeString.
From PyPM.Extraction Require Import Oracle LegalOracle ArefOracle EventOracle LawOracle.

Extraction Language OCaml.
Extract Inlined Constant Nat.eqb => "((=) : int -> int -> bool)".  (* not the polymorphic one *)
Extraction "oracle.ml" oracle_all oracle_first oracle_run oracle_vm oracle_admits oracle_below oracle_extent oracle_big oracle_init oracle_step
  oracle_wf oracle_guarded oracle_infer oracle_bindings constant_expr apply_expr constant_of record_expr
  record_fields
  push_digit pop_digit oracle_refusals oracle_call oracle_ring oracle_tasks oracle_equation.
