(** * The theorems

    This file only states what is proved elsewhere.  Throughout, [Δ] is any domain of constants, [Σ]
    is any structure of terms with any partial attributes and operations, [p] is any
    pattern and [t] any term; nothing is assumed that is not written. *)

From Coq Require Import List Bool.
Import ListNotations.
From PyPM Require Import Names Values Terms Guards Patterns Declarative Stores Machine WellFormed
  Guarded Soundness Invariant Completeness Enumeration Termination Decision BigStep Ordered Roots Inference
  Erasure BestLists BestSizes Simulation Dag Templates Emission Rewriting InPlace
  Compile RuleSet Items States Sharing Tabling Visits CodeVisits Repetitions
  Tables Locality Worklist Drive Records Instantiation.

Section Machine.
Context {Δ : Domain} {T : Type} {Σ : Structure T}.

(** A match is still a match when more is known. *)
Theorem monotonicity R p (θ θ' : env T) t :
  R ⊢ p @ θ ≈ t ->
  θ ⊆ θ' ->                      (* [θ'] knows at least what [θ] knows *)
  R ⊢ p @ θ' ≈ t.
Proof. apply matches_mono. Qed.

(** ** T1: the machine is a deterministic total function on running states *)

Theorem T1_determinism (st st1 st2 : state T) :
  steps_to st st1 -> steps_to st st2 -> st1 = st2.
Proof. apply step_deterministic. Qed.

Theorem T1_progress (st : state T) :
  status_of st = Running ->      (* neither a success nor a failure *)
  exists st', steps_to st st'.
Proof. apply step_progress. Qed.

Theorem T1_terminal (st st' : state T) :
  status_of st <> Running -> ~ steps_to st st'.
Proof. apply step_terminal. Qed.

(** ** T2: success implies a match *)

Theorem T2_soundness p (t : T) st σ θ :
  init p t ⟶* st ->              (* a run of the machine, *)
  status_of st = Success σ ->    (* that has succeeded; *)
  theta σ ⊆ θ ->                 (* [θ] may be the answer itself, or know more *)
  [] ⊢ p @ θ ≈ t.
Proof. apply soundness_above. Qed.

(** ** T3: failure implies that there is no match *)

Theorem T3_completeness p (t : T) st :
  wf p = true ->                 (* each name is bound before it is read (see C1 to C3) *)
  init p t ⟶* st ->
  status_of st = Failure ->
  forall θ, ~ [] ⊢ p @ θ ≈ t.
Proof. apply completeness. Qed.

(** ** T5: enumeration *)

Theorem T5_deterministic (st : state T) o o' : st ⇓ o -> st ⇓ o' -> o = o'.
Proof. apply answers_deterministic. Qed.

(** The first answer is the success of the machine; no answer is its failure. *)
Theorem T5_first (st : state T) o :
  st ⇓ o ->
  match o with
  | [] => st ⟶* []
  | σ :: _ => exists stk, st ⟶* (σ, []) :: stk
  end.
Proof. apply answers_first. Qed.

Theorem T5_sound p (t : T) o σ θ :
  init p t ⇓ o -> In σ o -> theta σ ⊆ θ -> [] ⊢ p @ θ ≈ t.
Proof. apply answers_sound. Qed.

(** The matches are the environments above an answer (not the answers alone: see C8). *)
Theorem T5_enumeration p (t : T) o θ :
  wf p = true ->                 (* as in T3 *)
  init p t ⇓ o ->
  ([] ⊢ p @ θ ≈ t <-> exists σ, In σ o /\ theta σ ⊆ θ).
Proof. apply answers_spec. Qed.

(** On the names that are definitely bound, the answer below a match is exactly the match. *)
Theorem T5_exactness p (t : T) o θ :
  wf p = true ->                 (* as in T3 *)
  init p t ⇓ o ->
  [] ⊢ p @ θ ≈ t ->
  exists σ, In σ o /\ theta σ ⊆ θ /\
    forall x, In x (bound_after [] [] p) -> theta σ x = θ x /\ θ x <> None.
Proof. apply answers_exact. Qed.

(** The answers and their order are those of the big-step semantics: leftmost first. *)
Theorem T5_order p (t : T) o :
  init p t ⇓ o <-> evaluates [] ρ0 p t empty o.
Proof. split; [apply machine_evaluates | apply evaluates_machine]. Qed.

(** [enumerate] is that semantics as a function, with fuel, of which some is enough. *)
Theorem T5_enumerate p (t : T) o :
  init p t ⇓ o <-> exists n, enumerate n [] ρ0 p t empty = Some o.
Proof. apply machine_enumerate. Qed.

(** ** Several roots: patterns that return a tuple *)

Theorem roots_soundness ps (ts : list T) st σ θ :
  length ps = length ts ->       (* a term for each root *)
  init_roots ps ts ⟶* st ->
  status_of st = Success σ ->
  theta σ ⊆ θ ->
  [] ⊢ ps @ θ ≈* ts.             (* every root matches, under one environment *)
Proof. apply roots_sound. Qed.

Theorem roots_completeness ps (ts : list T) st :
  length ps = length ts ->
  wf_roots ps = true ->          (* as in T3; later roots may read what earlier ones bind *)
  init_roots ps ts ⟶* st ->
  status_of st = Failure ->
  forall θ, ~ [] ⊢ ps @ θ ≈* ts.
Proof. apply roots_complete. Qed.

Theorem roots_enumeration ps (ts : list T) o θ :
  length ps = length ts ->
  wf_roots ps = true ->
  init_roots ps ts ⇓ o ->
  ([] ⊢ ps @ θ ≈* ts <-> exists σ, In σ o /\ theta σ ⊆ θ).
Proof. apply roots_answers. Qed.

(** ** Inference of the lists of recursive patterns *)

(** If any lists make a pattern well-formed, or guarded, the inferred ones do. *)
Theorem inference_wf p q :
  erase p = erase q ->           (* equal but for the lists *)
  wf q = true -> wf (infer p) = true.
Proof. apply infer_wf. Qed.

Theorem inference_guarded p q :
  erase p = erase q ->           (* as above *)
  guarded q = true -> guarded (infer p) = true.
Proof. apply infer_guarded. Qed.

(** Inference, and any change to the lists, leaves the answers and their order as they are. *)
Theorem inference_answers p (t : T) o : init (infer p) t ⇓ o <-> init p t ⇓ o.
Proof. apply infer_answers. Qed.

Theorem lists_irrelevant p q (t : T) o :
  erase p = erase q ->           (* equal but for the lists *)
  init p t ⇓ o -> init q t ⇓ o.
Proof. apply same_erasure_answers. Qed.

(** ** T8: compilation keeps the answers and their order *)

Theorem T8_compilation p (t : T) o : init p t ⇓ o <-> vm_answers (vm_init p t) o.
Proof. apply compile_exact. Qed.

Theorem T8_deterministic (st : list (vm_config (T := T))) o o' :
  vm_answers st o -> vm_answers st o' -> o = o'.
Proof. apply vm_deterministic. Qed.

Theorem T8_linear p : code_size (compile p) <= 2 * pattern_size p.
Proof. apply compile_linear. Qed.

(** ** Rule sets: the first rule in order that matches, with its first answer *)

Theorem rules_sound ps (t : T) os r σ :
  Forall2 (fun p o => init p t ⇓ o) ps os ->   (* the run of each rule ends *)
  first_rule 0 os = Some (r, σ) ->             (* the rule that the specification chooses *)
  exists p, nth_error ps r = Some p /\ [] ⊢ p @ theta σ ≈ t /\
    forall q p' θ, q < r -> nth_error ps q = Some p' -> wf p' = true -> ~ [] ⊢ p' @ θ ≈ t.
Proof.
  intros H E. destruct (first_rule_sound ps t os H 0 r σ E) as (r' & p & -> & X). eauto.
Qed.

Theorem rules_complete ps (t : T) os :
  Forall2 (fun p o => init p t ⇓ o) ps os ->
  first_rule 0 os = None ->
  forall p θ, In p ps -> wf p = true -> ~ [] ⊢ p @ θ ≈ t.
Proof. intros H. apply (first_rule_complete ps t os H). Qed.

(** The program of a set, in which rules share operator tests, gives all answers of all rules, rule by
    rule; so what it gives first is what the specification chooses. *)
Theorem rules_program ps (t : T) os :
  Forall2 (fun p o => init p t ⇓ o) ps os ->
  performs (program_init t) (compile_set ps) (in_order 0 os).
Proof. apply compile_set_answers. Qed.

(** What a run of the program finds first is what the specification chooses; with enough fuel it runs
    to its end. *)
Theorem rules_run ps (t : T) os :
  Forall2 (fun p o => init p t ⇓ o) ps os ->
  (forall n o, run_program n (compile_set ps) (program_init t) = Some o ->
     hd_error o = first_rule 0 os) /\
  (exists n, forall m, n <= m -> run_program m (compile_set ps) (program_init t) <> None).
Proof.
  intros H. split; [intros n o; now apply run_set_first |].
  destruct (run_set ps t os H) as [n E]. exists n. intros m L. now rewrite E.
Qed.
End Machine.

(** ** T9: the index lets through whatever could match *)

Section Index.
Context {Δ : Domain} {T : Type} {Σ : Structure T}.
Variable reads : guard -> bool.                  (* the guards on one name that the index reads *)
Variable versions : recursion -> expected -> bool.   (* the bodies with an item of their own *)

(** What a pattern matches satisfies its item; also inside of a larger pattern, whose later guards and
    constraints expect something of names. *)
Theorem T9_items R p θ (t : T) E :
  R ⊢ p @ θ ≈ t ->
  as_expected reads versions E θ ->    (* the terms of names are as expected; always so for [[]] *)
  satisfies reads versions t (item_of reads versions R E p).
Proof. apply items_admit. Qed.

(** The state of a subject, computed from those of its children by a worklist over a table of items, has
    the item of each pattern that matches.  So where it has not, none does. *)
Theorem T9_states table (stands : nat -> item -> Prop) p θ (t : T) s n :
  (forall n i, stands n i ->           (* numbers in the table stand for items *)
     represented table (T := T) reads versions stands n i) ->
  [] ⊢ p @ θ ≈ t ->
  state_of table t s ->
  stands n (item_of reads versions [] [] p) ->
  In n s.
Proof. intros H M S N. eapply states_admit; eauto. apply as_expected_nil. Qed.

(** Of several roots, each. *)
Theorem T9_roots ps θ (ts : list T) :
  [] ⊢ ps @ θ ≈* ts ->
  satisfy reads versions ts (map (item_of reads versions [] []) ps).
Proof. intros M. eapply items_admit_all; eauto. apply as_expected_nil. Qed.

(** Whether an item is satisfied is decided, with fuel. *)
Theorem T9_decided n (t : T) i b :
  satisfies_within reads versions n t i = Some b ->
  if b then satisfies reads versions t i else ~ satisfies reads versions t i.
Proof. apply satisfies_within_spec. Qed.

(** Every subject has a state. *)
Theorem T9_total {Z : Sized T} table (t : T) : exists s, state_of table t s.
Proof. exact (state_exists table t). Qed.
End Index.

(** ** T9: where the search finds the other outputs of a rule *)

Section Sharing.
Context {Δ : Domain} {T : Type} {Σ : Structure T}.

(** Every match binds the names in [bound_below] to terms at or below its subject, and all operators on
    the way there are those of the pattern. *)
Theorem T9_shared_below p θ (t : T) x :
  [] ⊢ p @ θ ≈ t ->
  In x (bound_below [] [] p) ->
  exists u, θ x = Some (VTerm u) /\ path (extent_of p) t u.
Proof. apply shared_below. Qed.

(** So an output that shares such a name with the outputs before it is found by going up from all nodes
    of the name's term, through operators of its pattern.  Many nodes may have one term. *)
Theorem T9_found_above (node : Type) (term_of : node -> T) (children : node -> list node)
    ps p qs θ ns n ms (shared : list name) :
  (forall n f ts, dest (term_of n) = (f, ts) -> map term_of (children n) = ts) ->
                                   (* the children of a node have the terms of its term's children *)
  [] ⊢ ps ++ p :: qs @ θ ≈* map term_of (ns ++ n :: ms) ->   (* a match, with its outputs [ns], [n], [ms] *)
  length ps = length ns ->         (* the output [n] is that of [p] *)
  (exists x, In x shared /\ In x (bound_below [] [] p)) ->
  reached node term_of children (extent_of p)
    (fun m => exists x, In x shared /\ In x (bound_below [] [] p) /\ θ x = Some (VTerm (term_of m)))
    n.
Proof. intros; eapply found_above; eauto. Qed.
End Sharing.

(** ** T9: searches of calls that need not be repeated

    In a search, names stand at allocated locations, and no other location is in use: [located].  Two
    calls are [alike] if their names are bound to the same, and those that are unbound are one location in
    one just if they are in the other. *)

Section Tabling.
Context {Δ : Domain} {T : Type} {Σ : Structure T}.

(** It begins with [located] and keeps it: after an answer, inside of a binder, and in a call. *)
Theorem T9_located :
  located (T := T) empty ρ0 /\
  forall (σ : store T) ρ, located σ ρ ->
    (forall R p t o τ, evaluates R ρ p t σ o -> In τ o -> located τ ρ) /\
    (forall x, located (alloc σ) (update ρ x (LFresh (next σ)))) /\
    (forall xs ys, located σ (callenv xs ys ρ)).
Proof. apply stays_located. Qed.

(** A call that is like one that failed fails. *)
Theorem T9_failed_again R p (t : T) σ ρ σ' ρ' :
  located σ ρ -> located σ' ρ' ->
  alike σ ρ σ' ρ' ->             (* what the matcher compares: see [_identity] in Python *)
  evaluates R ρ p t σ [] ->      (* no answer the first time *)
  evaluates R ρ' p t σ' [].
Proof. apply failed_again. Qed.

(** One that is like another has answers that are like its answers, in the same order. *)
Theorem T9_alike_calls R p (t : T) σ ρ σ' ρ' o :
  located σ ρ -> located σ' ρ' -> alike σ ρ σ' ρ' ->
  evaluates R ρ p t σ o ->
  exists o', evaluates R ρ' p t σ' o' /\
    Forall2 (fun τ τ' => forall x, (get τ ∘ ρ) x = (get τ' ∘ ρ') x) o o'.
Proof. apply alike_calls. Qed.

(** A call with nothing left to bind changes nothing that is outside of it; *)
Theorem T9_closed_unchanged R p (t : T) σ ρ o τ l :
  closed σ ρ ->                  (* all its names are bound *)
  evaluates R ρ p t σ o -> In τ o ->
  allocated σ l ->               (* a location of what called it *)
  get τ l = get σ l.
Proof. apply closed_unchanged. Qed.

(** and what comes after it does the same after each of its answers.  So if it fails after one, the others
    need not be tried. *)
Theorem T9_closed_choices R p (t : T) σ ρ o τ τ' R' ρ' q u a :
  closed σ ρ -> located σ ρ ->
  located σ ρ' ->                (* [ρ'] are the names of what comes after *)
  evaluates R ρ p t σ o -> In τ o -> In τ' o ->
  evaluates R' ρ' q u τ a ->
  exists a', evaluates R' ρ' q u τ' a' /\
    Forall2 (fun υ υ' => forall x, (get υ ∘ ρ') x = (get υ' ∘ ρ') x) a a'.
Proof. apply closed_choices. Qed.

(** The machine with visits is the machine; an answer has also the subjects whose operators were matched
    on the way to it. *)
Theorem T9_visits p (t : T) o :
  (visiting (search p t) o -> init p t ⇓ map fst o) /\
  (init p t ⇓ map fst o -> exists o', visiting (search p t) o' /\ map fst o' = map fst o).
Proof. apply visiting_machine. Qed.

(** Compiled code gives the same answers in the same order, and each has visited the same. *)
Theorem T8_visits p (t : T) o :
  code_visiting (code_search p t) o <-> visiting (search p t) o.
Proof. apply code_visits. Qed.

(** [tabling [] st o] is a run of compiled code that may, where it calls a recursive pattern,
    - write down a call of which the search ended without an answer, and leave out each call that is like
      one of these;
    - where a call has nothing left to bind, search what comes after its first answer, and then leave out
      all that its other answers lead to, or any of it;
    - go past such a call if the first answer of one that is like it is part of the match already.
    Each such run gives the answers of the machine, in its order and each with the same visits, but for
    answers that repeat the bindings of an earlier one. *)
Theorem T9_tabling p (t : T) o :
  tabling [] (code_search p t) o ->
  exists r, visiting (search p t) r /\ shorter same_bindings [] r o.
Proof. apply tabled_search. Qed.
End Tabling.

(** ** T4: termination and decision *)

Section Termination.
Context {Δ : Domain} {T : Type} {Σ : Structure T}.
Context {Z : Sized T}.           (* children are smaller than their parent *)

Theorem T4_termination p (t : T) :
  guarded p = true ->            (* each call is on a smaller term (see C7) *)
  exists o, init p t ⇓ o.
Proof. apply termination. Qed.

Theorem T4_halting p (t : T) :
  guarded p = true ->            (* as above *)
  exists st, init p t ⟶* st /\ status_of st <> Running.
Proof. apply machine_halts. Qed.

Theorem roots_termination ps (ts : list T) :
  guarded_roots ps = true ->     (* each root is guarded by itself *)
  exists o, init_roots ps ts ⇓ o.
Proof. apply Roots.roots_termination. Qed.

(** Hence the big-step semantics of a guarded pattern has a result, *)
Theorem T5_total p (t : T) :
  guarded p = true ->            (* as above *)
  exists o, evaluates [] ρ0 p t empty o.
Proof. intros G. destruct (termination p t G) as [o H]. exists o. now apply machine_evaluates. Qed.

(** and the program of a set of guarded rules runs to its end. *)
Theorem rules_total ps (t : T) :
  (forall p, In p ps -> guarded p = true) ->   (* as above *)
  exists os, Forall2 (fun p o => init p t ⇓ o) ps os /\
    exists n, forall m, n <= m ->
      run_program m (compile_set ps) (program_init t) = Some (in_order 0 os).
Proof. apply run_guarded_set. Qed.

(** [match_fn] and [match_all] are total functions on guarded patterns. *)
Theorem T4_match_fn_sound p (t : T) (G : guarded p = true) σ :
  match_fn p t G = Some σ -> [] ⊢ p @ theta σ ≈ t.
Proof. apply match_fn_sound. Qed.

Theorem T4_match_fn_complete p (t : T) (G : guarded p = true) :
  wf p = true ->                 (* as in T3 *)
  (match_fn p t G <> None <-> exists θ, [] ⊢ p @ θ ≈ t).
Proof. apply match_fn_complete. Qed.

Theorem T4_match_fn_first p (t : T) (G : guarded p = true) :
  match_fn p t G = hd_error (match_all p t G).
Proof. apply match_fn_first. Qed.

Theorem T4_match_all_answers p (t : T) (G : guarded p = true) :
  init p t ⇓ match_all p t G.
Proof. apply match_all_answers. Qed.
End Termination.

(** ** T6: graphs *)

Section Graphs.
Context {Δ : Domain}.
Variable dag_meaning : interpretation nat.       (* attributes and operations, on nodes *)
Variable tree_meaning : interpretation term.     (* the same, on trees *)
Variable g : dag.

#[local] Instance nodes : Structure nat := dag_structure dag_meaning g.
#[local] Instance trees : Structure term := tree_structure tree_meaning.

(** A node has the attributes of the tree that it unfolds to, and operations treat them alike.
    Operations on constants and tuples do so in any case: [on_data_rel]. *)
Definition meanings_agree : Prop := interpretations_agree (unfolds g) dag_meaning tree_meaning.

(** Matching by identity of nodes is matching of the unfolding, answer by answer. *)
Theorem T6_simulation p i t o :
  maximally_shared g ->          (* no two nodes are equal (see C10) *)
  meanings_agree ->
  unfolds g i t ->
  init p i ⇓ o ->
  exists o', init p t ⇓ o' /\ Forall2 (store_rel (r := unfolds g)) o o'.
Proof. intros; eapply dag_answers; eauto. Qed.

Theorem T6_matches p i t o :
  maximally_shared g ->
  meanings_agree ->
  wf p = true ->                 (* as in T3 *)
  unfolds g i t ->
  init p i ⇓ o ->
  (o <> [] <-> exists θ : env term, [] ⊢ p @ θ ≈ t).
Proof. intros; eapply dag_matches; eauto. Qed.

Theorem T6_total p i t :
  maximally_shared g ->
  meanings_agree ->
  topological g ->               (* children come before their parents *)
  guarded p = true ->            (* as in T4 *)
  unfolds g i t ->
  exists o o', init p i ⇓ o /\ init p t ⇓ o' /\ Forall2 (store_rel (r := unfolds g)) o o'.
Proof. intros; eapply dag_total; eauto. Qed.
End Graphs.

(** ** T7: rewriting preserves denotation *)

Section Rewriting.
Context {Δ : Domain} {V : Type}.
Variable sem : op -> list V -> V.          (* what operators denote: any functions *)

(** (a) On terms, in every context.  The pattern may be any: with alternates, recursion, locals, lets,
    guards and match constraints. *)
Theorem T7_terms tree_meaning p r C θ t u :
  law (Σ := tree_structure tree_meaning) sem (term_den sem) p r ->
                                           (* each match denotes what it is replaced by *)
  matches (Σ := tree_structure tree_meaning) [] p θ t ->
  instance θ r u ->
  term_den sem (plug C u) = term_den sem (plug C t).
Proof. apply rewrite_term. Qed.

(** (b) Where such a law comes from: for templates from an equation on values, which carries over to
    all matches, in every structure; for alternates from the law of each. *)
Theorem T7_rules {T : Type} {Σ : Structure T} (den : T -> V) lhs g rhs :
  compositional sem den ->                 (* terms denote by [sem] *)
  equation sem den lhs g rhs ->            (* where the guard is true, both sides denote the same *)
  law sem den (PGuard (pattern_of lhs) g) rhs.
Proof. intros Comp. now apply equation_law. Qed.

Theorem T7_alternates {T : Type} {Σ : Structure T} (den : T -> V) p q rhs :
  law sem den (PAlt p q) rhs <-> law sem den p rhs /\ law sem den q rhs.
Proof. apply law_alternates. Qed.

(** (c) Rebuilding a graph with a rule: every old node keeps its value in the new graph. *)
Theorem T7_rebuild dag_meaning fuel p rhs g :
  (forall g, topological g ->              (* the law of the rule, on node values *)
     law (Σ := nodes_of dag_meaning g) sem (node_den sem g) p rhs) ->
  topological g ->
  let (g', μ) := rebuild (apply_rule dag_meaning fuel p rhs) g in
  topological g' /\ length μ = length g /\
  forall i, i < length g ->
    nth i μ 0 < length g' /\ node_den sem g' (nth i μ 0) = node_den sem g i.
Proof. exact (rebuild_rule_sound sem dag_meaning fuel p rhs g). Qed.

(** (d) Replacing in place the outputs [is] of a match together, by the nodes [js]: the graph stays
    acyclic, and every old node keeps its value. *)
Theorem T7_in_place dag_meaning fuel ps rhss allowed rank place g is G js den :
  ranked rank g ->                         (* the graph is acyclic: children rank below parents *)
  denotation sem g den ->                  (* its nodes denote by [sem] *)
  (forall k, allowed k = true ->           (* the right-hand sides use existing nodes only, that *)
     k < length g /\ rank k <= place) ->   (* rank no higher than the place of the new ones, *)
  (forall i, In i is -> place <= rank i) ->   (* and the matched ones rank no lower (see C11) *)
  length ps = length is ->                 (* a node for each output *)
  laws (Σ := nodes_of dag_meaning g) sem den ps rhss ->   (* the law of the rule, on node values *)
  replace_in_place dag_meaning fuel ps rhss allowed g is = Some (G, js) ->
  acyclic G /\
  forall den', denotation sem G den' ->
    map den' js = map den is /\ forall k, k < length g -> den' k = den k.
Proof. intros; eapply replace_in_place_sound; eauto. Qed.

(** (e) So does any number of such replacements, by any rules of a set, in any order: a run of a driver. *)
Theorem T7_sequence dag_meaning rules g G den :
  (forall ps rhss, In (ps, rhss) rules -> lawful sem dag_meaning ps rhss) ->   (* in every graph *)
  acyclic g ->
  denotation sem g den ->
  rewritten dag_meaning rules g G ->       (* each step as in (d) *)
  acyclic G /\ length g <= length G /\
  forall den', denotation sem G den' -> forall k, k < length g -> den' k = den k.
Proof. apply rewritten_sound. Qed.

(** There is such a denotation of every acyclic graph. *)
Theorem T7_denotation g : acyclic g -> exists den, denotation sem g den.
Proof. apply denotation_exists. Qed.
End Rewriting.

(** ** The incremental driver: when nothing is pending, nothing is left to rewrite *)

Section Parameters.
Context {Δ : Domain} {T : Type} {Σ : Structure T}.
Variable Γ : list schema.                          (* definitions that take patterns *)
Variable notes : list applied -> list name * list name * list name.   (* I, O and B: any *)

(** ** T11: patterns that take patterns, and records *)

(** The instance of a pattern matches what the pattern matches, with the same environments. *)
Theorem T11_instances n p q (θ : env T) t :
  instantiate Γ notes n [] [] p = Some q ->
  xmatches Γ [] p θ t <-> [] ⊢ q @ θ ≈ t.
Proof. apply instance_matches. Qed.

(** So the machine finds its matches, *)
Theorem T11_answers n p q (t : T) o θ :
  instantiate Γ notes n [] [] p = Some q ->
  wf q = true ->                 (* as in T3, of the instance *)
  init q t ⇓ o ->
  (xmatches Γ [] p θ t <-> exists σ, In σ o /\ theta σ ⊆ θ).
Proof. intros I W A. rewrite (T11_instances n p q θ t I). now apply answers_spec. Qed.

(** and decides whether there is one. *)
Theorem T11_decided {Z : Sized T} n p q (t : T) (G : guarded q = true) :
  instantiate Γ notes n [] [] p = Some q ->
  wf q = true ->
  (match_fn q t G <> None <-> exists θ, xmatches Γ [] p θ t).
Proof.
  intros I W. rewrite (match_fn_complete q t G W).
  split; intros [θ M]; exists θ; now apply (T11_instances n p q θ t I).
Qed.

(** A field of a record that a let binds has the value that it is given, *)
Theorem T11_field {F : Fields Δ} (I : interpretation T) R p x αs es i α e (θ : env T) t :
  meaning = with_fields I ->     (* attributes of records are their fields *)
  NoDup αs ->                    (* each name is given once *)
  R ⊢ PLet p x (record αs es) @ θ ≈ t ->
  nth_error αs i = Some α ->
  nth_error es i = Some e ->
  eval θ (EAttr x α) = eval θ e.
Proof. intros M. now apply record_field with (I := I). Qed.

(** and a record has no other attributes. *)
Theorem T11_no_field {F : Fields Δ} (I : interpretation T) R p x αs es α (θ : env T) t :
  meaning = with_fields I ->
  R ⊢ PLet p x (record αs es) @ θ ≈ t ->
  ~ In α αs ->
  eval θ (EAttr x α) = None.
Proof. intros M. now apply record_other with (I := I). Qed.
End Parameters.

(** With records, attributes agree on a graph and on its unfolding if they did without: T6 holds. *)
Theorem T11_graphs {Δ : Domain} {F : Fields Δ} {T U : Type} (r : T -> U -> Prop) I J :
  interpretations_agree r I J ->
  interpretations_agree r (with_fields I) (with_fields J).
Proof. apply with_fields_agree. Qed.

Section Worklist.
Context {Δ : Domain}.
Variable dag_meaning : dag -> interpretation nat.   (* attributes and operations, on nodes *)
Variable rules : list pattern.
Variable act : body.                                (* what becomes of a match; it may be declined *)
Variable output : nat.                              (* its children are the results of the graph *)

(** At a live node, each match that is left is above one that is declined. *)
Theorem worklist_complete g pending G i r p θ :
  (forall p, In p rules -> wf p = true /\ guarded p = true) ->   (* as in T3 and T4 *)
  local_meaning dag_meaning ->   (* attributes read only what is below a node *)
  uses_below act ->              (* what replaces a match uses only what is below it *)
  acyclic g -> output < length g ->
  (forall k, live output g k -> In k pending) ->       (* at first, all that is live is pending; *)
  drives_to dag_meaning rules act output (g, pending) (G, []) ->   (* in the end, nothing *)
  live output G i ->
  nth_error rules r = Some p ->
  matches (Σ := nodes_of dag_meaning G) [] p θ i ->
  exists θ', θ' ⊆ θ /\ matches (Σ := nodes_of dag_meaning G) [] p θ' i /\ act G i r θ' = None.
Proof. intros; eapply quiet; eauto. Qed.

(** Hence a rule that declines nothing matches nowhere. *)
Theorem worklist_quiet g pending G i r p :
  (forall p, In p rules -> wf p = true /\ guarded p = true) ->   (* as above *)
  local_meaning dag_meaning -> uses_below act -> acyclic g -> output < length g ->
  (forall k, live output g k -> In k pending) ->
  drives_to dag_meaning rules act output (g, pending) (G, []) ->
  live output G i ->
  nth_error rules r = Some p ->
  (forall θ, matches (Σ := nodes_of dag_meaning G) [] p θ i -> act G i r θ <> None) ->
  forall θ, ~ matches (Σ := nodes_of dag_meaning G) [] p θ i.
Proof.
  intros W Loc Use A O All D L N Never θ M.
  destruct (quiet _ Loc _ _ Use _ W _ _ _ A O All D _ _ _ _ L N M) as (θ' & _ & M' & E).
  exact (Never θ' M' E).
Qed.

(** The steps are those of a function that puts back what is above the nodes it touched (the touched
    nodes alone are too few: see C15). *)
Theorem worklist_drive fuel g pending G :
  uses_below act ->
  local_body act ->              (* whether a match is declined depends on what is below it *)
  drive dag_meaning rules act output fuel above g pending = Some G ->
  drives_to dag_meaning rules act output (g, pending) (G, []).
Proof. intros; eapply drive_drives; eauto. Qed.
End Worklist.

(** ** T10: a legal rewrite changes no outcome

    Graphs as torch runs them: tensors are views of storages, and operators may write, change modes,
    draw random numbers and have effects.  [legal] reads the signatures of operators alone; the
    equation is about values alone; [parts_kept] about the views that results are. *)

From PyPM.legality Require Import Execution Legal Equation Legality Exchange.

Section Legality.
Context {τ : Torch}.                       (* what operators compute: any functions *)

Theorem T10_legality (w : rewrite) (σ : state) :
  is_graph w = true ->                     (* what is rewritten is a graph *)
  legal w = true ->                        (* no condition can be dropped (see L1 to L25) *)
  equation w ->                            (* the replacement computes the values of the region *)
  parts_kept w σ ->                        (* results that have moved overlap as before (see L23) *)
  arranged (inputs w) σ ->                 (* inputs of different classes share no memory *)
  same_outcome (input_names w) (outputs w) (run (from w) σ) (run (to w) σ).
Proof. intros G L E P A. apply legal_outcome; auto. now apply equation_holds_at. Qed.

(** The equation need only hold at the values that are there: a guard may see to it. *)
Theorem T10_guarded (w : rewrite) (σ : state) :
  is_graph w = true ->
  legal w = true ->
  holds_at w σ ->
  parts_kept w σ ->
  arranged (inputs w) σ ->
  same_outcome (input_names w) (outputs w) (run (from w) σ) (run (to w) σ).
Proof. apply legal_outcome. Qed.

(** Any number of such rewrites, one after the other. *)
Theorem T10_sequence ins outs g g' (σ : state) :
  arranged ins σ ->
  rewrites ins outs σ g g' ->              (* each is as in [T10_guarded], of the graph before it *)
  same_outcome (map fst ins) outs (run g σ) (run g' σ).
Proof. apply rewrites_outcome. Qed.

(** Two draws next to each other may be exchanged, if what they get from the stream is exchanged too. *)
Theorem T10_exchange inputs outputs p x y q (σ : state) γ :
  scoped (map fst inputs) (p ++ x :: y :: q) = true ->   (* what is changed is a graph *)
  arranged inputs σ ->
  exchangeable x y = true ->               (* new memory, no other effect, and [y] does not read [x] *)
  exchanges (run p σ) x y γ ->             (* in the stream [γ] their samples have changed places *)
  same_outcome (map fst inputs) outputs
    (run (p ++ x :: y :: q) σ) (run (y :: x :: q) (with_generator (run p σ) γ)).
Proof. apply exchange_outcome. Qed.

(** Where draws take samples from the front of a stream, there is such a stream: the samples of the two
    calls, in the other order. *)
Theorem T10_streams (A : Type) (push : list A -> generator -> generator)
    (takes : operator -> list value -> nat) μ f g vs ws a b γ :
  (forall f vs a γ, draws f = true -> length a = takes f vs ->   (* a draw moves past its samples, *)
     next_generator f (Surroundings μ (Some (push a γ)) None) vs = γ) ->
  (forall f vs a γ γ', draws f = true -> length a = takes f vs ->   (* and sees no others *)
     result f (Surroundings μ (Some (push a γ)) None) vs =
     result f (Surroundings μ (Some (push a γ')) None) vs) ->
  draws f = true -> draws g = true -> length a = takes f vs -> length b = takes g ws ->
  exchanged μ f g vs ws (push a (push b γ)) (push b (push a γ)).
Proof. apply exchanged_streams. Qed.
End Legality.

(** ** T12: asynchronous references lose nothing and do not get stuck

    A ring of [D] slots, one producer, [C] consumers that each read all [N] items, and give back item [j]
    when they have got [due j] items. Waits test parities of barriers; copies land and reads end at any time. *)

From Coq Require Import PeanoNat.
From PyPM Require Arefs.

Section Arefs.
Import Arefs.
Variables (D N C : nat) (due : nat -> nat).
Hypothesis slots : 1 <= D.

Theorem T12_no_overwrite s t c i :
  reached D N C due s ->
  step D N C due s t -> put t = S (put s) ->       (* the producer starts a copy *)
  c < C -> i < put s -> i mod D = put s mod D ->    (* into the slot that item [i] had: *)
  ended s c i = true.                              (* no consumer reads it any more *)
Proof. now apply no_overwrite. Qed.

Theorem T12_reads_landed s c i :
  reached D N C due s -> c < C ->
  i < got s c ->                                   (* what a consumer may read *)
  landed s i = true.
Proof. now apply reads_landed. Qed.

Theorem T12_put_waits s c :
  reached D N C due s -> c < C ->
  (slot_free D s c <-> put s < freed s c + D).     (* the parity is the comparison of counters *)
Proof. now apply put_waits. Qed.

Theorem T12_get_waits s c :
  reached D N C due s -> c < C ->
  got s c < put s ->                               (* before that, no copy is under way *)
  (Nat.odd (arrived D (landed s) (put s) (got s c mod D)) <> Nat.odd (got s c / D) <->
   landed s (got s c) = true).
Proof. now apply get_waits. Qed.

Theorem T12_progress s :
  (forall j, j < N -> j < due j <= N) ->           (* an item is got before it is given back, *)
  (forall j, j < N -> due j <= j + D) ->           (* and this needs no more than [D] slots *)
  reached D N C due s ->
  (exists c, c < C /\ freed s c < N) ->            (* unless all consumers are at their end *)
  exists t, step D N C due s t.
Proof. now apply progress. Qed.
End Arefs.

(** What the judge of logs accepts is a run of the protocol to its end. *)
Theorem T12_accepted D N C due es :
  Arefs.accepted D N C due es = true ->
  exists s, Arefs.reached D N C due s /\ forall c, c < C -> Arefs.freed s c = N.
Proof. apply Arefs.accepted_path. Qed.

(** One barrier that counts the arrivals of all consumers has completed as many phases as the slowest. *)
Theorem T12_one_barrier D N C due s m :
  1 <= D ->
  Arefs.reached D N C due s ->
  m < C -> (forall c, c < C -> Arefs.freed s m <= Arefs.freed s c) ->    (* [m] is the slowest *)
  (Arefs.slot_free D s m <-> forall c, c < C -> Arefs.slot_free D s c).
Proof. apply Arefs.one_barrier. Qed.

(** Rings that are filled in one order in each turn are one ring of all their slots. *)
Theorem T12_rings R D t r :
  r < R -> 1 <= D ->
  (t * R + r) mod (R * D) = (t mod D) * R + r /\ (t * R + r) / (R * D) = t / D.
Proof. apply Arefs.several_rings. Qed.

(** With [P] turns in flight: when [g] items of a turn are got, those of [P] turns before are given back. *)
Theorem T12_in_flight R D P g k r :
  P < D ->
  g <= R -> r < R ->
  (k + P) * R + g <= k * R + r + R * D.            (* [due j <= j + R * D], as progress asks *)
Proof. apply Arefs.in_flight. Qed.

(** ** T13: tasks that wait for events run to their end, none before its inputs

    [N] tasks in queues, which are sorted by one linear order, [rank]; up to [W] workers enter, each with
    a queue, and take tasks from it. A task waits until its events have counted all their arrivals, runs,
    and notifies. Workers go on in any order. Tickets are one queue of all tasks. *)

From PyPM Require Events.

Section Events.
Import Events.
Variables (N W : nat) (waits notes queue : nat -> list nat) (rank : nat -> nat).
Hypothesis P : plan N waits notes queue rank.        (* all tasks are in one queue each, after their inputs *)

Theorem T13_no_early_read es s x t i j e :
  run N W waits notes queue rank es s ->
  step N W waits notes queue rank s x t ->
  started s i = false -> started t i = true ->       (* when a task starts, *)
  In e (waits i) -> j < N -> In e (notes j) ->
  finished s j = true.                               (* what it reads is written *)
Proof. intros R. eapply no_early_read; eauto. Qed.

Theorem T13_progress es s :
  run N W waits notes queue rank es s ->
  (exists w q, w < W /\ owns s w = Some q) ->        (* once a worker has entered, *)
  (exists i, i < N /\ left s i = false) ->           (* unless all is done, *)
  exists x t, step N W waits notes queue rank s x t /\
  fair W s x.                                        (* without the queue of another worker *)
Proof. now apply progress. Qed.

Theorem T13_completes es s :
  run N W waits notes queue rank es s ->
  length es <= most N W notes /\                     (* a run ends, *)
  ((exists w q, w < W /\ owns s w = Some q) ->       (* and then *)
   (forall x t, step N W waits notes queue rank s x t -> ~ fair W s x) ->
   forall i, i < N -> finished s i = true).          (* every task has run *)
Proof. intros R. split; [eapply bounded; eauto | eapply completes; eauto]. Qed.

(** The judge of logs accepts those of runs to their end, and no others. *)
Theorem T13_accepted es :
  accepted N W waits notes queue rank es = true <->
  exists s, run N W waits notes queue rank es s /\ forall i, i < N -> left s i = true.
Proof. apply accepted_iff. Qed.

(** So in a log that it accepts, *)
Theorem T13_log_once es i :
  accepted N W waits notes queue rank es = true -> i < N ->
  exists ys w zs, es = ys ++ Begin w i :: zs /\       (* each task begins *)
  forall v, ~ In (Begin v i) (ys ++ zs).             (* once, *)
Proof. now apply log_once. Qed.

Theorem T13_log_order es ys w i zs j e :
  accepted N W waits notes queue rank es = true ->
  es = ys ++ Begin w i :: zs ->
  In e (waits i) -> j < N -> In e (notes j) ->
  exists v, In (Finish v j) ys.                      (* after all that it reads is written *)
Proof. now apply log_order. Qed.
End Events.

Theorem T13_tickets N waits notes :
  (forall i j e, i < N -> j < N -> In e (waits i) -> In e (notes j) -> j < i) ->   (* a topological order *)
  Events.plan N waits notes (Events.tickets N) (fun i => i).
Proof. apply Events.tickets_plan. Qed.

(** In the call after [n] others, a counter with [a] new arrivals of [c] has all of them if and only if it
    has [S n * c]. *)
Theorem T13_counts_on n c a :
  a <= c -> (S n * c <= n * c + a <-> a = c).
Proof. apply Events.counts_on. Qed.

(** ** T14: an equation with a certificate holds in every structure

    A structure is a commutative ring with the rational numbers, an exponential and powers, such as the
    real numbers; the functions and reductions of which nothing is known are part of it. *)

From PyPM.laws Require Structures Expressions Certificates Rules Lemmas.

Theorem T14_certificates {A : Structures.structure} (inputs : Expressions.inputs A) I a b :
  Certificates.accepted a b = true ->              (* the checker accepts both sides *)
  Expressions.def inputs I a ->                    (* no inverse of zero, no root of what is negative *)
  Expressions.def inputs I b ->
  Expressions.den inputs I a = Expressions.den inputs I b.     (* for all inputs, sizes and indices *)
Proof. apply Certificates.accepted_equal. Qed.

(** With T7: a rule whose sides are read as index notation has its law if all pairs are accepted. *)
Theorem T14_rules {Δ : Domain} {T V P : Type} {Σ : Structure T} sem (den : T -> V)
    {A : Structures.structure} (element : V -> P -> Structures.F A) certificates lhs g rhs :
  compositional sem den ->
  (forall v w, (forall p, element v p = element w p) -> v = w) ->    (* tensors are their elements *)
  Rules.read_as sem den element certificates lhs g rhs ->            (* what the pairs say of the sides *)
  forallb (fun c => Certificates.accepted (fst c) (snd c)) certificates = true ->
  law sem den (PGuard (pattern_of lhs) g) rhs.
Proof. intros C E R H. apply T7_rules; auto. now apply (Rules.certified_equation sem den element certificates). Qed.

(** A match is a match in one of the ways through the patterns: one alternate is taken wherever there are
    several, and what is called is as is said of it ([meant]), if each way of what is called is. *)
Theorem T14_ways {Δ : Domain} {T : Type} {Σ : Structure T} meant ps θ ts :
  Forall (Lemmas.lemma meant) (flat_map (Lemmas.contexts []) ps) ->
  [] ⊢ ps @ θ ≈* ts ->
  exists ws, In ws (Lemmas.ways_of_all ps) /\ Lemmas.all_by_meaning meant [] ws θ ts.
Proof. apply Lemmas.all_ways. Qed.

(** So a rule has its law if the equations of its own ways, and those of the ways of all patterns that it
    calls with what they mean, are accepted. *)
Theorem T14_lemmas {Δ : Domain} {T V P : Type} {Σ : Structure T} sem (den : T -> V)
    {A : Structures.structure} (element : V -> P -> Structures.F A) certificates meaning ps rs :
  (forall v w, (forall p, element v p = element w p) -> v = w) ->    (* tensors are their elements *)
  Forall (Lemmas.read_lemma den element certificates meaning) (flat_map (Lemmas.contexts []) ps) ->
  Lemmas.read_rule sem den element certificates meaning ps rs ->     (* what the pairs say of the sides *)
  forallb (fun c => Certificates.accepted (fst c) (snd c)) certificates = true ->
  laws sem den ps rs.
Proof. apply Lemmas.lemmas_laws. Qed.
