"""Mutants of the Coq development: definitions, hypotheses that cannot be met, weaker statements."""

from tests.mutants.mutant import Mutant

__all__ = ["CALCULUS"]


def _in(file: str, does: str, old: str, new: str) -> Mutant:
    return Mutant(does, f"coq/theories/{file}.v", ((old, new),))


def _stated(does: str, old: str, new: str) -> Mutant:
    return _in("Main", does, old, new)


DEFINITIONS = [
    _in(
        "Machine",
        "the second alternate first",
        "[(σ, AMatch R ρ p t :: k); (σ, AMatch R ρ q t :: k)]",
        "[(σ, AMatch R ρ q t :: k); (σ, AMatch R ρ p t :: k)]",
    ),
    _in(
        "Machine",
        "guards are not tested",
        "match geval (get σ ∘ ρ) g with\n      | Some true => [(σ, k)]\n      | _ => []\n      end",
        "[(σ, k)]",
    ),
    _in(
        "Machine",
        "a local name need not be bound",
        "match get σ l with\n      | Some _ => [(σ, k)]\n      | None => []\n      end",
        "[(σ, k)]",
    ),
    _in(
        "Machine",
        "local names share a location",
        "[(alloc σ, AMatch R (update ρ x l) p t :: ACheck l :: k)]",
        "[(σ, AMatch R (update ρ x l) p t :: ACheck l :: k)]",
    ),
    _in(
        "Stores",
        "a name that occurs twice is not compared",
        "Some w => if veqb w v then Some σ else None",
        "Some w => Some σ",
    ),
    _in(
        "Names",
        "a body sees the names around it",
        "fun x => match arg xs ys x with Some y => m y | None => None end.",
        "fun x => match arg xs ys x with Some y => m y | None => m x end.",
    ),
    _in(
        "Kleene",
        "what is not known wins over false",
        "| Some false, _ | _, Some false => Some false",
        "| Some false, _ => Some false",
    ),
    _in(
        "Kleene",
        "negation of what is not known is true",
        "kleene_not (a : option bool) : option bool := option_map negb a.",
        "kleene_not (a : option bool) : option bool :=\n"
        "  match a with Some b => Some (negb b) | None => Some true end.",
    ),
    _in(
        "Guards",
        "the order of numbers is turned round",
        "| GLt e1 e2 => compare value_less (eval θ e1) (eval θ e2)",
        "| GLt e1 e2 => compare value_less (eval θ e2) (eval θ e1)",
    ),
    _in(
        "Values",
        "tuples of different lengths are equal",
        "| _, _ => Some false\n         end) vs ws\n  | _, _ => Some false",
        "| _, _ => Some true\n         end) vs ws\n  | _, _ => Some false",
    ),
    _in(
        "Declarative",
        "an operator variable matches any operator",
        "dest t = (f, ts) -> θ F = Some (VOp f) -> R ⊢ ps @ θ ≈* ts ->",
        "dest t = (f, ts) -> R ⊢ ps @ θ ≈* ts ->",
    ),
    _in(
        "WellFormed",
        "guards may read what is not bound",
        "| PGuard p g => checks R D p && subset (guard_vars g) (bound_after R D p)",
        "| PGuard p g => checks R D p",
    ),
    _in(
        "WellFormed",
        "no pattern is well-formed",
        "wf (p : pattern) : bool := checks [] [] p.",
        "wf (p : pattern) : bool := false && checks [] [] p.",
    ),
    _in(
        "Guarded",
        "a call on a term of the same size is accepted",
        "| Some Strict => true",
        "| Some Strict | Some Weak => true",
    ),
    _in(
        "Guarded",
        "no pattern is guarded",
        "bool := descends [] Weak [] [] no_sizes p.",
        "bool := false && descends [] Weak [] [] no_sizes p.",
    ),
    _in(
        "BigStep",
        "the order of alternates is turned round",
        "evaluates R ρ (PAlt p q) t σ (o ++ o')",
        "evaluates R ρ (PAlt p q) t σ (o' ++ o)",
    ),
    _in(
        "Inference",
        "finds no outputs",
        "(body ins outs)) (1 + length xs) xs.",
        "(body ins outs)) 0 xs.",
    ),
    _in("Inference", "asks for all inputs", "enlarge asked (length xs) [].", "enlarge asked 0 xs."),
    _in(
        "Compile",
        "guards are not compiled",
        "| PGuard p g => compile p ++ [IGuard g]",
        "| PGuard p g => compile p",
    ),
    _in(
        "RuleSet",
        "a rule comes before those that are there",
        "| Accept _ => Or P (straight c r)",
        "| Accept _ => Or (straight c r) P",
    ),
    _in(
        "Emission",
        "uses what is not allowed",
        "if allowed i then Some (g, i) else None",
        "Some (g, i)",
    ),
    _in(
        "InPlace",
        "new nodes are redirected too",
        "  map (redirect to) g ++ skipn (length g) g'.",
        "  map (redirect to) g'.",
    ),
    _in(
        "Tables",
        "any call has nothing left to bind once it is part of a match",
        "calls x g y -> callable f -> all_bound f -> like f g ->\n"
        "    code_visiting [(alone f, [])] ((τ, w) :: o1) ->",
        "calls x g y -> callable f -> like f g ->\n"
        "    code_visiting [(alone f, [])] ((τ, w) :: o1) ->",
    ),
    _in(
        "Tables",
        "the first answer of any call is enough",
        "calls x f y -> all_bound f ->\n",
        "calls x f y ->\n",
    ),
    _in(
        "Tables",
        "calls at other subjects are alike",
        "f_code f = f_code g /\\ f_subject f = f_subject g /\\",
        "f_code f = f_code g /\\",
    ),
    _in(
        "CodeVisits",
        "operator variables visit nothing",
        "| IOp _ _ :: _, t :: _ | IFun _ _ :: _, t :: _ => [t]",
        "| IOp _ _ :: _, t :: _ => [t]",
    ),
    _in(
        "Sharing",
        "a variable visits any operator",
        "| PVar _ | PCall _ _ => Some []\n  | POp",
        "| PVar _ => None | PCall _ _ => Some []\n  | POp",
    ),
    _in(
        "legality/Execution",
        "an outcome forgets which parts results are",
        "  same_results : forall k, same_shown k",
        "  same_results : forall k, k = 0 -> same_shown k",
    ),
    _in(
        "legality/Execution",
        "an outcome forgets the generator",
        "same_generator : now_generator σ = now_generator σ'",
        "same_generator : history σ = history σ'",
    ),
    _in(
        "legality/Execution",
        "an outcome forgets the mode",
        "same_mode : now_mode σ = now_mode σ'",
        "same_mode : history σ = history σ'",
    ),
    _in(
        "legality/Execution",
        "inputs of one class are one storage",
        "exists i, home (env σ n) = Given k i.",
        "exists i, home (env σ n) = Given k (i * 0).",
    ),
    _in(
        "legality/Exchange",
        "a draw may pass one that it reads",
        "samples f && samples g && negb (mem (fst x) brgs)",
        "samples f && samples g",
    ),
    _in(
        "legality/Exchange",
        "a draw that acts may be exchanged",
        "negb (switches f) && negb (acts f) | _, _ => false end.",
        "negb (switches f) | _, _ => false end.",
    ),
    _in(
        "Drive",
        "puts back what was touched alone",
        "let G := redirect_users (instead [i] [j]) g g' in Some (G, i :: back "
        "G (touched_nodes g G i))",
        "let G := redirect_users (instead [i] [j]) g g' in Some (G, i :: touched_nodes g G i)",
    ),
]

UNSATISFIABLE = [
    _in(
        "Dag",
        "no graph is in topological order",
        "nth_error g i = Some (f, cs) -> forall c, In c cs -> c < i.",
        "nth_error g i = Some (f, cs) -> f < 0 /\\ forall c, In c cs -> c < i.",
    ),
    _in(
        "Dag",
        "no graph is maximally shared",
        "nth_error g i = Some n -> nth_error g j = Some n -> i = j.",
        "nth_error g i = Some n -> nth_error g j = Some n -> i < j.",
    ),
    _in(
        "InPlace",
        "no graph is ranked",
        "nth_error g k = Some (f, cs) -> In c cs -> c < length g /\\ rank c < rank k.\n",
        "nth_error g k = Some (f, cs) -> In c cs -> c < length g /\\ rank c < rank k < 0.\n",
    ),
    _in(
        "Templates",
        "no rule has its law",
        "template_den θ r = Some v -> v = den t.\n",
        "template_den θ r = Some v -> v = den t /\\ False.\n",
    ),
    _in(
        "Templates",
        "no equation holds",
        "template_den θ lhs = Some v -> template_den θ rhs = Some w -> v = w.\n",
        "template_den θ lhs = Some v -> template_den θ rhs = Some w -> v = w /\\ False.\n",
    ),
    _in(
        "Worklist",
        "no body uses what is below a match",
        "(forall k, allowed k = true -> below g i k) /\\",
        "(forall k, allowed k = true -> below g k i) /\\",
    ),
    _in(
        "Roots",
        "no roots are guarded",
        ":= forallb guarded ps.",
        ":= forallb (fun p => guarded p && false) ps.",
    ).then(
        "  apply andb_prop in G as [Gp G].\n",
        "  apply andb_prop in G as [Gp G]. apply andb_prop in Gp as [Gp _].\n",
    ),
    _in(
        "States",
        "no number stands for an operator",
        "| Applied o js => exists ns, nth_error",
        "| Applied o js => exists ns, False /\\ nth_error",
    ).then(
        "destruct (stands_for _ _ S) as (ns & E & F).\n"
        "    destruct (state_begins _ _ _ _ H D) as (ss & Fs",
        "destruct (stands_for _ _ S) as (ns & _ & E & F).\n"
        "    destruct (state_begins _ _ _ _ H D) as (ss & Fs",
    ),
    _in(
        "Tables",
        "no failed call is written down",
        "| T_record tb f v stk o :\n    callable f ->",
        "| T_record tb f v stk o :\n    False /\\ callable f ->",
    ).then("| tb f v stk o Cf _ IHf", "| tb f v stk o [_ Cf] _ IHf"),
    _in(
        "Tables",
        "no call is left out for one that failed",
        "    calls x g y -> In f tb -> like f g ->\n",
        "    False /\\ calls x g y -> In f tb -> like f g ->\n",
    ).then("| tb x f g y v stk o C I L", "| tb x f g y v stk o [_ C] I L"),
    _in(
        "legality/Exchange",
        "no samples are exchanged",
        "  | Call f args, Call g brgs =>\n      exchanged",
        "  | Call f args, Call g brgs =>\n      False /\\ exchanged",
    ).then(
        "unfold exchanges in E. simpl in E.\n",
        "unfold exchanges in E. simpl in E. destruct E as [_ E].\n",
    ),
    _in(
        "InPlace",
        "no rule is lawful in all graphs",
        "  forall g den, denotation g den -> laws",
        "  forall g den, laws",
    ),
]
"""Conditions that nothing meets: a theorem about what meets them says nothing."""

STATEMENTS = [
    _stated(
        "T3 assumes what is false",
        "Theorem T3_completeness p (t : T) st :\n",
        "Theorem T3_completeness p (t : T) st : False ->\n",
    ).then("Proof. apply completeness. Qed.", "Proof. intros []. Qed."),
    _stated("T3 has another name", "Theorem T3_completeness p", "Theorem T3_complete p"),
    _stated(
        "T2 speaks of well-formed patterns alone",
        "Theorem T2_soundness p (t : T) st σ θ :\n",
        "Theorem T2_soundness p (t : T) st σ θ : wf p = true ->\n",
    ).then("Proof. apply soundness_above. Qed.", "Proof. intros _. apply soundness_above. Qed."),
    _stated(
        "T4 speaks of well-formed patterns alone",
        "Theorem T4_termination p (t : T) :\n",
        "Theorem T4_termination p (t : T) : wf p = true ->\n",
    ).then("Proof. apply termination. Qed.", "Proof. intros _. apply termination. Qed."),
    _stated(
        "T5_order in one direction",
        "  init p t ⇓ o <-> evaluates [] ρ0 p t empty o.\n"
        "Proof. split; [apply machine_evaluates | apply evaluates_machine]. Qed.",
        "  evaluates [] ρ0 p t empty o -> init p t ⇓ o.\nProof. apply evaluates_machine. Qed.",
    ),
    _stated(
        "T5_enumeration in one direction",
        "  ([] ⊢ p @ θ ≈ t <-> exists σ, In σ o /\\ theta σ ⊆ θ).\nProof. apply answers_spec. Qed.",
        "  ((exists σ, In σ o /\\ theta σ ⊆ θ) -> [] ⊢ p @ θ ≈ t).\n"
        "Proof. intros W H. now apply answers_spec. Qed.",
    ),
    _stated(
        "completeness of several roots for one root",
        "Theorem roots_completeness ps (ts : list T) st :\n",
        "Theorem roots_completeness ps (ts : list T) st : length ps = 1 ->\n",
    ).then("Proof. apply roots_complete. Qed.", "Proof. intros _. apply roots_complete. Qed."),
    _stated(
        "T6 forgets the answers",
        "  init p i ⇓ o ->\n"
        "  exists o', init p t ⇓ o' /\\ Forall2 (store_rel (r := unfolds g)) o o'.\n"
        "Proof. intros; eapply dag_answers; eauto. Qed.",
        "  init p i ⇓ o ->\n  exists o', init p t ⇓ o'.\n"
        "Proof. intros S A U H. destruct (dag_answers _ _ _ S A p i t o U H) "
        "as (o' & H' & _). eauto. Qed.",
    ),
    _stated(
        "T6_total assumes a graph without nodes",
        "  guarded p = true ->            (* as in T4 *)\n  unfolds g i t ->\n",
        "  guarded p = true ->            (* as in T4 *)\n  g = [] -> unfolds g i t ->\n",
    ),
    _stated(
        "T7_in_place forgets that the graph stays acyclic",
        "  replace_in_place dag_meaning fuel ps rhss allowed g is = Some (G, js) ->\n"
        "  acyclic G /\\\n",
        "  replace_in_place dag_meaning fuel ps rhss allowed g is = Some (G, js) ->\n",
    ).then(
        "Proof. intros; eapply replace_in_place_sound; eauto. Qed.",
        "Proof. intros. eapply replace_in_place_sound; eauto. Qed.",
    ),
    _stated(
        "T7_in_place for one output",
        "  length ps = length is ->                 (* a node for each output *)\n",
        "  length ps = length is -> length is = 1 ->\n",
    ),
    _stated(
        "T8 speaks of runs of the machine that end alone",
        "(t : T) o : init p t ⇓ o <-> vm_answers (vm_init p t) o.\n"
        "Proof. apply compile_exact. Qed.",
        "(t : T) o : init p t ⇓ o -> vm_answers (vm_init p t) o.\n"
        "Proof. apply compile_answers. Qed.",
    ),
    _stated(
        "inference may leave the pattern as it is",
        "Theorem inference_wf p q :\n"
        "  erase p = erase q ->           (* equal but for the lists *)\n",
        "Theorem inference_wf p q :\n  erase p = erase q -> p = q ->\n",
    ).then("Proof. apply infer_wf. Qed.", "Proof. intros E _. now apply infer_wf. Qed."),
    _stated(
        "what the driver leaves need not be declined",
        " /\\ act G i r θ' = None.\nProof. intros; eapply quiet; eauto. Qed.",
        ".\nProof. intros. edestruct quiet as (θ' & ? & ? & _); eauto. Qed.",
    ),
    _stated(
        "T9_tabling assumes that nothing was left out",
        "  tabling [] (code_search p t) o ->\n",
        "  tabling [] (code_search p t) o -> visiting (search p t) o ->\n",
    ).then("Proof. apply tabled_search. Qed.", "Proof. intros H _. now apply tabled_search. Qed."),
    _stated(
        "T10_legality assumes that the outcome is the same",
        "Theorem T10_legality (w : rewrite) (σ : state) :\n",
        "Theorem T10_legality (w : rewrite) (σ : state) :\n"
        "  same_outcome (input_names w) (outputs w) (run (from w) σ) (run (to w) σ) ->\n",
    ).then(
        "Proof. intros G L E P A. apply legal_outcome; auto. now apply equation_holds_at. Qed.",
        "Proof. intros S G L E P A. apply S. Qed.",
    ),
    _in(
        "Soundness",
        "an open proof",
        "From Coq Require Import List Bool PeanoNat.\n",
        "From Coq Require Import List Bool PeanoNat.\nLemma hole : False. Proof. Admitted  .\n",
    ),
    _in(
        "Soundness",
        "an axiom",
        "From Coq Require Import List Bool PeanoNat.\n",
        "From Coq Require Import List Bool PeanoNat.\n  Axiom hole : False.\n",
    ),
    _in(
        "Main",
        "an assumption at top level",
        "Section Machine.\n",
        "Variable hole : forall P : Prop, P.\nSection Machine.\n",
    ),
]

CALCULUS = [*DEFINITIONS, *UNSATISFIABLE, *STATEMENTS]
