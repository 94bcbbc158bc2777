(** * Near-by statements that are false

    Each with its counterexample, C1 to C15: why the conditions of the theorems are what they are.
    The patterns speak about trees of the instance in [Toy.v]. *)

From Coq Require Import List Bool PeanoNat Lia.
Import ListNotations.
From PyPM Require Import Names Values Terms Guards Patterns Declarative Stores Machine WellFormed
  Guarded Enumeration Dag Templates Emission Rewriting InPlace Locality Worklist Drive Toy.

Ltac fails := apply fails_by_run; vm_compute; reflexivity.
Ltac succeeds := apply succeeds_by_run; vm_compute; reflexivity.

(** ** C1: a guard that reads a name bound later

    [f(x; guard(y.op = b), y)] on [f(a, b)].  Hence the variables of a guard must be definitely bound. *)

Definition C1 : pattern := pf [PGuard (PVar nx) (op_is ny op_b); PVar ny].

Example C1_fails : fails C1 (tf [ta; tb]).
Proof. fails. Qed.

Example C1_has_match : has_match C1 (tf [ta; tb]).
Proof.
  exists (fun y => match y with 0 => Some (VTerm ta) | _ => Some (VTerm tb) end).
  repeat (econstructor || reflexivity).
Qed.

Example C1_ill_formed : wf C1 = false.
Proof. reflexivity. Qed.

(** ** C2: a local name that nothing binds

    [∃x. a] on [a]: any witness matches, but the machine has none.  Hence the body of a binder must
    bind its name. *)

Definition C2 : pattern := PEx nx pa.

Example C2_fails : fails C2 ta.
Proof. fails. Qed.

Example C2_has_match : has_match C2 ta.
Proof. exists (fun _ => None). apply M_ex with (VTerm ta). repeat (econstructor || reflexivity). Qed.

Example C2_ill_formed : wf C2 = false.
Proof. reflexivity. Qed.

(** ** C3: a name bound on one branch only

    [(x ∥ b); guard(x.op = c)] on [b].  Hence what an alternate binds is what both branches bind. *)

Definition C3 : pattern := PGuard (PAlt (PVar nx) pb) (op_is nx op_c).

Example C3_fails : fails C3 tb.
Proof. fails. Qed.

Example C3_has_match : has_match C3 tb.
Proof.
  exists (fun _ => Some (VTerm tc)). constructor; [apply M_alt_r |];
    repeat (econstructor || reflexivity).
Qed.

Example C3_ill_formed : wf C3 = false.
Proof. reflexivity. Qed.

(** ** C4, C5, C6: one global environment

    A matcher that binds names in one global environment, leaves them bound when it leaves a binder
    (or unbinds them, if [unbind]), and passes arguments by renaming the text of the body.  [None]
    means out of fuel. *)

Fixpoint rename (r : name -> name) (p : pattern) : pattern :=
  match p with
  | PVar y => PVar (r y)
  | POp f ps => POp f (map (rename r) ps)
  | PFun F ps => PFun (r F) (map (rename r) ps)
  | PAlt p q => PAlt (rename r p) (rename r q)
  | PEx y p => PEx y (rename (fun z => if Nat.eqb z y then z else r z) p)
  | PMu xs ins outs small b ys => PMu xs ins outs small b (map r ys)
  | PCall i ys => PCall i (map r ys)
  | p => p
  end.

Definition replace (xs ys : list name) (y : name) : name :=
  match arg xs ys y with Some z => z | None => y end.

Definition globals : Type := list (name * value term).

Definition lookup (y : name) (θ : globals) : option (value term) :=
  option_map snd (find (fun b => Nat.eqb y (fst b)) θ).

Definition bind_global (y : name) (t : term) (θ : globals) : list globals :=
  match lookup y θ with
  | None => [(y, VTerm t) :: θ]
  | Some v => if veqb v (VTerm t) then [θ] else []
  end.

(** From each environment, all of those that follow. *)
Fixpoint each {A : Type} (f : A -> option (list A)) (l : list A) : option (list A) :=
  match l with
  | [] => Some []
  | a :: l =>
      match f a, each f l with
      | Some o, Some o' => Some (o ++ o')
      | _, _ => None
      end
  end.

Section Naive.
Variable unbind : bool.

Fixpoint naive (fuel : nat) (R : recursion) (p : pattern) (t : term) (θ : globals)
    : option (list globals) :=
  match fuel with
  | 0 => None
  | S fuel =>
      match p with
      | PVar y => Some (bind_global y t θ)
      | POp f ps =>
          let (g, ts) := term_dest t in
          if Nat.eqb f g && Nat.eqb (length ps) (length ts)
          then fold_left
                 (fun o pt => option_bind o (each (naive fuel R (fst pt) (snd pt))))
                 (combine ps ts) (Some [θ])
          else Some []
      | PAlt p q =>
          match naive fuel R p t θ, naive fuel R q t θ with
          | Some o, Some o' => Some (o ++ o')
          | _, _ => None
          end
      | PEx y p =>
          option_map
            (fun o =>
               let bound := filter (fun θ => match lookup y θ with Some _ => true | _ => false end) o in
               if unbind then map (filter (fun b => negb (Nat.eqb y (fst b)))) bound else bound)
            (naive fuel R p t θ)
      | PMu xs ins outs small b ys =>
          naive fuel (Def xs ins outs small b :: R) (rename (replace xs ys) b) t θ
      | PCall i ys =>
          match skipn i R with
          | d :: R' => naive fuel (d :: R') (rename (replace (d_params d) ys) (d_body d)) t θ
          | [] => Some []
          end
      | _ => Some []
      end
  end.
End Naive.

Definition naive_run (unbind : bool) (p : pattern) (t : term) : option (list globals) :=
  naive unbind 100 [] p t [].

(** C4: [f(∃x. x, ∃x. x)] on [f(a, b)].  The second [x] collides with the first. *)

Definition C4 : pattern := pf [PEx nx (PVar nx); PEx nx (PVar nx)].

Example C4_naive : naive_run false C4 (tf [ta; tb]) = Some [].
Proof. reflexivity. Qed.

Example C4_machine : succeeds C4 (tf [ta; tb]) /\ has_match C4 (tf [ta; tb]).
Proof. assert (succeeds C4 (tf [ta; tb])) by succeeds. auto using succeeds_has_match. Qed.

(** C5: [μP. f(∃x. x, P) ∥ c] on [f(a, f(b, c))].  The names are distinct in the text, but
    unfolding duplicates them. *)

Definition C5 : pattern :=
  PMu [] [] [] [] (PAlt (pf [PEx nx (PVar nx); PCall 0 []]) pc) [].

Definition C5_term : term := tf [ta; tf [tb; tc]].

Example C5_naive : naive_run false C5 C5_term = Some [].
Proof. reflexivity. Qed.

Example C5_machine : succeeds C5 C5_term /\ has_match C5 C5_term.
Proof. assert (succeeds C5 C5_term) by succeeds. auto using succeeds_has_match. Qed.

(** C6: [(μP(x). ∃y. f(x, y))(y)] on [f(a, b)].  The argument [y] is captured by the binder. *)

Definition C6 : pattern := PMu [nx] [] [nx] [] (PEx ny (pf [PVar nx; PVar ny])) [ny].

Example C6_naive : naive_run false C6 (tf [ta; tb]) = Some [].
Proof. reflexivity. Qed.

Example C6_machine : succeeds C6 (tf [ta; tb]) /\ has_match C6 (tf [ta; tb]).
Proof. assert (succeeds C6 (tf [ta; tb])) by succeeds. auto using succeeds_has_match. Qed.

(** If binders also unbind, capture makes the matcher unsound: [g(P(y), y)] on [g(f(a, a), b)]. *)

Definition C6' : pattern := pg [C6; PVar ny].
Definition C6'_term : term := tg [tf [ta; ta]; tb].

Example C6'_naive : naive_run true C6' C6'_term = Some [[(ny, VTerm tb)]].
Proof. reflexivity. Qed.

Example C6'_no_match : ~ has_match C6' C6'_term.
Proof.
  assert (fails C6' C6'_term) as F by fails. intros [θ M].
  destruct (answers_complete C6' C6'_term [] θ eq_refl F M) as (σ & [] & _).
Qed.

(** ** C7: a call below an operator is not yet a smaller call

    [∃y. y; ((μP(u). f(∃z. z; (P(u) ≈ u)))(y) ≈ y)] on [f(a)].  The call stands below [f], but the
    constraint re-enters at [u], the whole term: the machine does not halt.  Hence the modes. *)

Definition C7_def : definition :=
  Def [nu] [nu] [nu] [] (pf [PEx nz (PMatch (PVar nz) (PCall 0 [nu]) nu)]).

Definition C7 : pattern :=
  PEx ny (PMatch (PVar ny)
    (PMu (d_params C7_def) (d_in C7_def) (d_out C7_def) (d_small C7_def) (d_body C7_def) [ny]) ny).

Example C7_unguarded : guarded C7 = false.
Proof. reflexivity. Qed.

Example C7_well_formed : wf C7 = true.
Proof. reflexivity. Qed.

(** Whatever the store and the rest of the work: entering the body leads to entering the body. *)
Lemma C7_loops n : forall (σ : store term) ρ k l,
  (forall m, next σ <= m -> get σ (LFresh m) = None) ->
  ρ nu = Some l -> get σ l = Some (VTerm (tf [ta])) ->
  run n [(σ, AMatch [C7_def] ρ (d_body C7_def) (tf [ta]) :: k)] = None.
Proof.
  induction n as [n IH] using (well_founded_induction Wf_nat.lt_wf). intros σ ρ k l Free Eρ Eσ.
  do 3 (destruct n as [| n]; [reflexivity |]; simpl).
  destruct n as [| n]; [reflexivity |]. cbn [run expand do_action match_pattern].
  unfold bind_name, bind. rewrite update_same. simpl.
  change (get (alloc σ) ?l) with (get σ l). rewrite Free by auto. simpl.
  set (σ1 := set (alloc σ) (LFresh (next σ)) (VTerm ta)).
  assert (E1 : get σ1 l = Some (VTerm (tf [ta]))).
  { unfold σ1. rewrite get_set. destruct (loc_eqb l (LFresh (next σ))) eqn:Q; [| exact Eσ].
    apply loc_eqb_spec in Q. subst. rewrite Free in Eσ by auto. discriminate. }
  destruct n as [| n]; [reflexivity |]. cbn [run expand do_action].
  unfold compose. rewrite update_other, Eρ, E1 by discriminate. simpl.
  destruct n as [| n]; [reflexivity |]. cbn [run expand do_action match_pattern skipn app].
  apply (IH n) with l; [lia | | | exact E1].
  - intros m L. unfold σ1 in *. simpl in L. rewrite get_set.
    destruct (loc_eqb (LFresh m) (LFresh (next σ))) eqn:Q; [| apply Free; lia].
    apply loc_eqb_spec in Q. injection Q as ->. lia.
  - unfold callenv. simpl. now rewrite update_other by discriminate.
Qed.

(** Five steps lead to the body. *)
Lemma C7_enters n :
  run (5 + n) (init C7 (tf [ta])) =
  run n [(set (alloc empty) (LFresh 0) (VTerm (tf [ta])),
          [AMatch [C7_def] (callenv [nu] [ny] (update ρ0 ny (LFresh 0))) (d_body C7_def) (tf [ta]);
           ACheck (LFresh 0)])].
Proof. reflexivity. Qed.

Example C7_diverges : ~ exists o, init C7 (tf [ta]) ⇓ o.
Proof.
  intros [o H]. apply run_complete in H as [n H].
  do 5 (destruct n as [| n]; [discriminate H |]).
  change (run (5 + n) (init C7 (tf [ta])) = Some o) in H. rewrite C7_enters in H.
  rewrite C7_loops with (l := LFresh 0) in H; try reflexivity; [discriminate |].
  intros [| m] L; [simpl in L; lia | reflexivity].
Qed.

(** ** C8: more environments match than the machine lists

    [x ∥ y] on [a]: also [{x ↦ a, y ↦ b}] matches.  Hence the matches are those *above* an answer. *)

Definition C8 : pattern := PAlt (PVar nx) (PVar ny).

Example C8_answers :
  toy_run C8 ta [nx; ny] = Some [[Some (VTerm ta); None]; [None; Some (VTerm ta)]].
Proof. reflexivity. Qed.

Example C8_match_above :
  let θ y := match y with 0 => Some (VTerm ta) | _ => Some (VTerm tb) end in [] ⊢ C8 @ θ ≈ ta.
Proof. apply M_alt_l. constructor. reflexivity. Qed.

(** ** C9: two-valued guards

    [f(a; guard(¬ (x.op = b)), x)] on [f(a, b)].  If an unbound name makes a comparison false, the
    guard is true when it is tested, and false in the end: negation is not monotone.  Hence three
    values. *)

Fixpoint two_valued (θ : env term) (g : guard) : bool :=
  match g with
  | GAnd g1 g2 => two_valued θ g1 && two_valued θ g2
  | GOr g1 g2 => two_valued θ g1 || two_valued θ g2
  | GNot g => negb (two_valued θ g)
  | g => match geval θ g with Some b => b | None => false end
  end.

Definition C9_guard : guard := GNot (op_is nx op_b).

Example C9_two_valued :
  let early : env term := fun _ => None in
  let late : env term := fun _ => Some (VTerm tb) in
  early ⊆ late /\ two_valued early C9_guard = true /\ two_valued late C9_guard = false.
Proof. split; [intros y v; discriminate | split; reflexivity]. Qed.

Definition C9 : pattern := pf [PGuard pa C9_guard; PVar nx].

Example C9_fails : fails C9 (tf [ta; tb]).
Proof. fails. Qed.

Example C9_no_match : ~ has_match C9 (tf [ta; tb]).
Proof.
  intros [θ M]. inversion M as [| ? ? ? ? ? ? D Ms | | | | | | | | |]; subst.
  injection D as <-. inversion Ms as [| ? ? ? ? ? ? M1 Ms1]; subst.
  inversion M1 as [| | | | | | ? ? ? ? ? _ G | | | |]; subst.
  inversion Ms1 as [| ? ? ? ? ? ? M2 _]; subst. inversion M2 as [? ? ? ? E | | | | | | | | | |]; subst.
  cbn in G. rewrite E in G. discriminate.
Qed.

(** ** C10: identity of nodes without maximal sharing

    [f(x, x)] on the nodes [a; a; f(0, 1)]: the two leaves are different nodes with equal unfoldings. *)

Definition C10 : pattern := pf [PVar nx; PVar nx].
Definition C10_dag : dag := [(op_a, []); (op_a, []); (op_f, [0; 1])].
Definition C10_nodes : Structure nat := dag_structure no_meaning C10_dag.

Example C10_unshared : topological C10_dag /\ ~ maximally_shared C10_dag.
Proof.
  split.
  - intros [| [| [| i]]] f cs E c I; try (injection E as <- <-; simpl in I; lia).
    destruct i; discriminate.
  - intros H. discriminate (H 0 1 _ eq_refl eq_refl).
Qed.

Example C10_nodes_fail : answers (Σ := C10_nodes) (init C10 2) [].
Proof. apply (run_sound (Σ := C10_nodes) 100). reflexivity. Qed.

Example C10_tree_matches : unfolds C10_dag 2 (tf [ta; ta]) /\ succeeds C10 (tf [ta; ta]).
Proof. split; [repeat (econstructor || reflexivity) | succeeds]. Qed.

(** ** C11: redirecting all users of a replaced node

    The rule [a → g(a)] at the node [0] of [a; f(0)]: the new node [2 = g(0)] is itself a user of [0].
    Redirecting it too makes it its own child.  Hence only users that were there before are redirected,
    or the graph is rebuilt. *)

Definition C11_dag : dag := [(op_a, []); (op_f, [0])].

Example C11_all_users :
  map (redirect (instead [0] [2])) (C11_dag ++ [(op_g, [0])]) = [(op_a, []); (op_f, [2]); (op_g, [2])].
Proof. reflexivity. Qed.

Example C11_users_before :
  map (redirect (instead [0] [2])) C11_dag ++ [(op_g, [0])] = [(op_a, []); (op_f, [2]); (op_g, [0])].
Proof. reflexivity. Qed.

(** No order of the nodes puts children first, in the first case; in the second, there is one. *)

Example C11_cyclic : ~ acyclic [(op_a, []); (op_f, [2]); (op_g, [2])].
Proof. intros [rank H]. destruct (H 2 op_g [2] 2 eq_refl (or_introl eq_refl)). lia. Qed.

Example C11_acyclic : acyclic [(op_a, []); (op_f, [2]); (op_g, [0])].
Proof.
  exists (fun i => match i with 0 => 0 | 2 => 1 | _ => 2 end).
  intros [| [| [| i]]] f cs c E I; try (injection E as <- <-; simpl in *; intuition (subst; auto)).
  destruct i; discriminate.
Qed.

(** ** C12: a right-hand side with a name that the left-hand side need not bind

    The instantiation is undefined; the rewriter leaves the graph as it is. *)

Definition C12_dag : dag := [(op_a, [])].

Example C12_undefined : emit (exists_in C12_dag) (fun _ => None) (TOp op_g [TVar nx]) C12_dag = None.
Proof. reflexivity. Qed.

Example C12_skipped :
  apply_rule (fun _ => no_meaning) 100 (POp op_a []) (TOp op_g [TVar nx]) C12_dag 0 = (C12_dag, 0).
Proof. reflexivity. Qed.

(** ** C13: recursion through a helper, without the third annotation

    [μP(x). (∃y. Wrap(y); (f(P(x)) ≈ y)) ∥ x] with [Wrap(y) = μW(y). g(W(y)) ∥ y].  It terminates, but
    that is seen only if [Wrap] says that it leaves [y] bound to something no larger than its subject. *)

Definition C13_wrap (small : list name) : pattern :=
  PMu [ny] [] [ny] small (PAlt (pg [PCall 0 [ny]]) (PVar ny)) [ny].

Definition C13 (small : list name) : pattern :=
  PMu [nx] [] [nx] []
    (PAlt (PEx ny (PMatch (C13_wrap small) (pf [PCall 0 [nx]]) ny)) (PVar nx)) [nx].

Example C13_refused : guarded (C13 []) = false.
Proof. reflexivity. Qed.

Example C13_accepted : guarded (C13 [ny]) = true /\ wf (C13 [ny]) = true.
Proof. split; reflexivity. Qed.

(** ** C14: committing to an alternate, and negation of patterns

    [f(g(x) ∥ x, x)] on [f(g(a), g(a))].  The first alternate matches [g(a)], yet only the second leads
    to a match: a matcher that commits to the first would be incomplete. *)

Definition C14 : pattern := pf [PAlt (pg [PVar nx]) (PVar nx); PVar nx].
Definition C14_committed : pattern := pf [pg [PVar nx]; PVar nx].
Definition C14_term : term := tf [tg [ta]; tg [ta]].

Example C14_well_formed : wf C14 = true.
Proof. reflexivity. Qed.

Example C14_cut :
  succeeds (pg [PVar nx]) (tg [ta]) /\ fails C14_committed C14_term /\ succeeds C14 C14_term.
Proof. split; [succeeds |]. split; [fails | succeeds]. Qed.

(** A pattern that matches where another does not would not be monotone. *)
Example C14_negation :
  let early : env term := fun _ => None in
  let late : env term := fun _ => Some (VTerm ta) in
  early ⊆ late /\ ~ [] ⊢ PVar nx @ early ≈ ta /\ [] ⊢ PVar nx @ late ≈ ta.
Proof.
  split; [intros y v; discriminate |]. split; [| now constructor].
  intros M. inversion M. discriminate.
Qed.

(** ** C15: putting back only the nodes that a replacement touched

    The rules [a → b] and [f(g(b)) → c] on [f(g(a))], from the top down.  When [a] is replaced, the new
    node and its user [g] are touched; [f], two levels up, now matches.  Hence all that is above a
    touched node is put back. *)

Definition C15_rules : list pattern := [pa; pf [pg [pb]]].
Definition C15_act : body :=
  template_body (fun _ _ _ => false) (fun _ _ _ _ => true) [TOp op_b []; TOp op_c []].

(** The node 3 is the output. *)
Definition C15_dag : dag := [(op_a, []); (op_g, [0]); (op_f, [1]); (op_g, [2])].

Definition C15_drive (back : dag -> list nat -> list nat) : option dag :=
  drive (fun _ => no_meaning) C15_rules C15_act 3 100 back C15_dag [3; 2; 1; 0].

Definition C15_touched_dag : dag := [(op_a, []); (op_g, [4]); (op_f, [1]); (op_g, [2]); (op_b, [])].

Example C15_touched : C15_drive (fun _ touched => touched) = Some C15_touched_dag.
Proof. reflexivity. Qed.

Example C15_left : live 3 C15_touched_dag 2 /\
  exists θ, matches (Σ := nodes_of (fun _ => no_meaning) C15_touched_dag) [] (pf [pg [pb]]) θ 2.
Proof.
  split; [apply (B_child _ 3 2 2); [now left | constructor] |].
  exists (fun _ => None). repeat (econstructor || reflexivity).
Qed.

Definition C15_above_dag : dag :=
  [(op_a, []); (op_g, [4]); (op_f, [1]); (op_g, [5]); (op_b, []); (op_c, [])].

Example C15_above : C15_drive above = Some C15_above_dag.
Proof. reflexivity. Qed.

(** There, no rule matches any more, by the theorem of [Worklist.v]. *)
Example C15_quiet i r p θ :
  live 3 C15_above_dag i -> nth_error C15_rules r = Some p ->
  ~ matches (Σ := nodes_of (fun _ => no_meaning) C15_above_dag) [] p θ i.
Proof.
  intros L N M.
  assert (Local : local_meaning (fun _ => no_meaning)) by (split; intros; exact I).
  assert (Use : uses_below C15_act) by now apply template_body_uses_below.
  assert (Body : local_body C15_act).
  { intros g h k [| [| [| q]]] η _ E; solve [reflexivity | discriminate E]. }
  pose proof (drive_drives (fun _ => no_meaning) C15_rules C15_act Use 3 100 _ _ _ Body C15_above) as D.
  assert (W : forall q, In q C15_rules -> wf q = true /\ guarded q = true).
  { intros q [<- | [<- | []]]; split; reflexivity. }
  assert (A : acyclic C15_dag).
  { exists (fun k => k). apply topological_ranked.
    intros [| [| [| [| k]]]] f cs E c J; try (injection E as <- <-; simpl in J; lia).
    destruct k; discriminate. }
  assert (All : forall k, live 3 C15_dag k -> In k [3; 2; 1; 0]).
  { intros k. apply closed_live; [now left | reflexivity]. }
  destruct (quiet _ Local _ _ Use 3 W _ _ _ A ltac:(simpl; lia) All D i r p θ L N M)
    as (θ' & _ & _ & E).
  destruct r as [| [| [| r]]]; discriminate.
Qed.
