(** * What surface forms elaborate to

    The forms of the surface language that the calculus does not have, and what stands for them.  None
    copies a sub-pattern.  Each is well-formed and guarded, by computation, and each is run once.
    Recursive patterns show that the forms may surround a recursive call. *)

From Coq Require Import List Bool PeanoNat.
Import ListNotations.
From PyPM Require Import Names Values Terms Guards Patterns Declarative Stores Machine WellFormed
  Guarded Enumeration Inference Erasure Compile RuleSet Toy.

(** A pattern that the theorems speak about. *)
Definition checked (p : pattern) : bool := wf p && guarded p.

(** ** A unary chain: [μP(x, F). F(P(x, F)) ∥ F(x)], longest first *)

Definition unary_chain : pattern :=
  PMu [nx; nF] [] [nx; nF] [] (PAlt (PFun nF [PCall 0 [nx; nF]]) (PFun nF [PVar nx])) [nx; nF].

Example unary_chain_checked : checked unary_chain = true.
Proof. reflexivity. Qed.

Example unary_chain_answers :
  toy_run unary_chain (tf [tf [ta]]) [nx; nF] =
  Some [[Some (VTerm ta); Some (VOp op_f)]; [Some (VTerm (tf [ta])); Some (VOp op_f)]].
Proof. reflexivity. Qed.

(** ** A call on an expression: [P(e)] is [∃y. P(y); (e ≈ y)] *)

Definition Wrap (y : name) : pattern :=
  PMu [ny] [] [ny] [ny] (PAlt (pg [PCall 0 [ny]]) (PVar ny)) [y].

Definition call_on_expression : pattern := PEx ny (PMatch (Wrap ny) (pf [PVar nx]) ny).

Example call_on_expression_checked : checked call_on_expression = true.
Proof. reflexivity. Qed.

Example call_on_expression_answers :
  toy_run call_on_expression (tg [tg [tf [ta]]]) [nx] = Some [[Some (VTerm ta)]].
Proof. reflexivity. Qed.

(** ** A commutative operator: [∃u v. (f(u, v) ∥ f(v, u)); (p ≈ u); (q ≈ v)] *)

Definition commutative (p q : pattern) : pattern :=
  PEx nu (PEx nz
    (PMatch (PMatch (PAlt (pf [PVar nu; PVar nz]) (pf [PVar nz; PVar nu])) p nu) q nz)).

Definition sums : pattern :=
  PMu [nx] [] [nx] [nx] (PAlt (commutative (PCall 0 [nx]) pb) (PVar nx)) [nx].

Example sums_checked : checked sums = true.
Proof. reflexivity. Qed.

Example sums_answers :
  toy_run sums (tf [tb; tf [ta; tb]]) [nx] =
  Some [[Some (VTerm ta)]; [Some (VTerm (tf [ta; tb]))]; [Some (VTerm (tf [tb; tf [ta; tb]]))]].
Proof. reflexivity. Qed.

(** ** Any one position: [∃u. (F(u) ∥ F(u, _) ∥ F(_, u)); (p ≈ u)] *)

Definition hole (p : pattern) : pattern :=
  PEx nF (PEx nu
    (PMatch (PAlt (PFun nF [PVar nu]) (PAlt (PFun nF [PVar nu; any nz]) (PFun nF [any nz; PVar nu])))
       p nu)).

(** ** Attribute tests, before the children: [∃n. n; guard(n.α = c); (p ≈ n)] *)

Definition test_first (n : name) (g : guard) (p : pattern) : pattern :=
  PEx n (PMatch (PGuard (PVar n) g) p n).

Definition pointwise_chain : pattern :=
  PMu [nx] [] [nx] [nx] (PAlt (test_first ny (op_is ny op_f) (hole (PCall 0 [nx]))) (PVar nx)) [nx].

Example pointwise_chain_checked : checked pointwise_chain = true.
Proof. reflexivity. Qed.

Example pointwise_chain_answers :
  toy_run pointwise_chain (tf [tg [tb]; ta]) [nx] =
  Some [[Some (VTerm (tg [tb]))]; [Some (VTerm ta)]; [Some (VTerm (tf [tg [tb]; ta]))]].
Proof. reflexivity. Qed.

(** ** An optional parameter: [f(x, n); let(s = n.op)] or [x; let(s = 7)] *)

Definition scaled : pattern :=
  PMu [nx; ny] [] [nx; ny] [nx]
    (PAlt (PEx nz (PLet (pf [PVar nx; PVar nz]) ny (EAttr nz 0)))
          (PLet (PVar nx) ny (EConst 7)))
    [nx; ny].

Example scaled_checked : checked scaled = true.
Proof. reflexivity. Qed.

Example scaled_answers :
  toy_run scaled (tf [ta; tb]) [nx; ny] =
  Some [[Some (VTerm ta); Some (VConst 1)]; [Some (VTerm (tf [ta; tb])); Some (VConst 7)]].
Proof. reflexivity. Qed.

(** ** Lists as cells, with a parameter that is bound on entry

    [Slices(x, lo)] matches [cons(x & n, Slices(x, lo + 1))] with [n.op = lo], or [nil]. *)

Definition op_cons : op := 20.
Definition op_nil : op := 21.

Definition slices : pattern :=
  PMu [nx; ny] [ny] [] []
    (PAlt
       (PEx nz (PEx nu
          (POp op_cons
             [PLet (PGuard (PVar nz) (GEq (EAttr nz 0) (EVar ny))) nu (EPrim tt [EVar ny; EConst 1]);
              PCall 0 [nx; nu]])))
       (POp op_nil []))
    [nx; ny].

(** It is not well-formed where its second argument is not bound, and is, where it is. *)
Definition slices_from (n : nat) : pattern :=
  PEx ny (PEx 6 (PMatch (PLet (PVar 6) ny (EConst n)) slices 6)).

Example slices_checked : wf slices = false /\ checked (slices_from 0) = true.
Proof. split; reflexivity. Qed.

Definition cells (ts : list term) : term :=
  fold_right (fun t l => Node op_cons [t; l]) (Node op_nil []) ts.

Example slices_answers :
  toy_run (slices_from 0) (cells [ta; tb; tc]) [] = Some [[]] /\
  toy_run (slices_from 0) (cells [ta; tc; tb]) [] = Some [].
Proof. split; reflexivity. Qed.

(** ** Calls to an outer recursive pattern: [μP. μQ. f(P) ∥ g(Q) ∥ a] *)

Definition nested : pattern :=
  PMu [] [] [] []
    (PMu [] [] [] [] (PAlt (pf [PCall 1 []]) (PAlt (pg [PCall 0 []]) pa)) []) [].

Example nested_checked : checked nested = true.
Proof. reflexivity. Qed.

Example nested_answers :
  toy_run nested (tf [tg [tf [ta]]]) [] = Some [[]] /\ toy_run nested (tf [tg [tf [tb]]]) [] = Some [].
Proof. split; reflexivity. Qed.

(** An outer call on the same subject is refused. *)
Example nested_refused :
  guarded (PMu [] [] [] [] (PMu [] [] [] [] (PAlt (PCall 1 []) pa) []) []) = false.
Proof. reflexivity. Qed.

(** ** Inference finds the lists

    With the lists inferred all of these are well-formed and guarded; without lists, not all are. *)

Example inferred :
  forallb (fun p => checked (infer (erase p)))
    [unary_chain; call_on_expression; sums; pointwise_chain; scaled; slices_from 0; nested] = true.
Proof. vm_compute. reflexivity. Qed.

Example erased :
  map (fun p => checked (erase p)) [call_on_expression; sums; pointwise_chain; slices_from 0] =
  [false; true; true; false].
Proof. vm_compute. reflexivity. Qed.

(** ** Rules that share an operator test

    [f(g(x), y)], [f(g(b), y)] and [f(x, y)]: the tests for [f] and then [g] are made once for the
    first two rules, and the test for [f] once for all three. *)

Definition three_rules : list pattern :=
  [pf [pg [PVar nx]; PVar ny]; pf [pg [pb]; PVar ny]; pf [PVar nx; PVar ny]].

Example three_rules_program :
  compile_set three_rules =
  Instr (IOp op_f 2)
    (Or (Instr (IOp op_g 1)
           (Or (Instr (IVar nx) (Instr (IVar ny) (Accept 0)))
               (Instr (IOp op_b 0) (Instr (IVar ny) (Accept 1)))))
        (Instr (IVar nx) (Instr (IVar ny) (Accept 2)))).
Proof. reflexivity. Qed.

Example three_rules_run :
  option_map (map fst)
    (run_program 100 (compile_set three_rules) (at_end empty [tf [tg [tb]; ta]] [([], ρ0)])) =
  Some [0; 1; 2].
Proof. reflexivity. Qed.
