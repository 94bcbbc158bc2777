(** * T6, T7 and T9 on examples

    Their hypotheses can be met, and what they conclude is what computation gives.  Nodes are numbers:
    [f] doubles, [g] adds, [a] is zero and every other leaf is one. *)

From Coq Require Import List Bool PeanoNat Lia.
Import ListNotations.
From PyPM Require Import Names Values Terms Guards Patterns Declarative Stores Machine WellFormed
  Guarded Enumeration Roots Simulation Dag Templates Emission Rewriting InPlace Compile Tabling Visits
  CodeVisits Repetitions Tables Toy Main.

(** The only attribute of a node, or of a tree, is its operator. *)
Definition node_meaning (g : dag) : interpretation nat :=
  Interpretation
    (fun α v => match α, v with 0, VTerm i => Some (VConst (fst (dag_dest g i))) | _, _ => None end)
    (fun _ _ => None).

Definition tree_meaning : interpretation term :=
  Interpretation
    (fun α v => match α, v with 0, VTerm (Node f _) => Some (VConst f) | _, _ => None end)
    (fun _ _ => None).

Ltac topological :=
  let f := fresh "f" in let cs := fresh "cs" in
  let E := fresh "E" in let c := fresh "c" in let I := fresh "I" in
  intros k f cs E c I;
  repeat (destruct k as [| k]; [injection E as <- <-; simpl in I; lia |]);
  destruct k; discriminate.

(** ** T6: [g(f(a, a))], in which [a] is shared *)

Definition shared : dag := [(op_a, []); (op_f, [0; 0]); (op_g, [1])].

(** A variable that occurs twice. *)
Definition twice : pattern := pg [pf [PVar nx; PVar nx]].

Example shared_matches :
  exists o, answers (Σ := dag_structure (node_meaning shared) shared) (init twice 2) o /\ o <> [].
Proof.
  assert (S : maximally_shared shared).
  { intros [| [| [| i]]] [| [| [| j]]] n; simpl; intros A B; try congruence;
      try (destruct i; discriminate); destruct j; discriminate. }
  assert (A : meanings_agree (node_meaning shared) tree_meaning shared).
  { split; [| intros; exact I]. intros [| α] v w H; destruct H; simpl; auto.
    inversion H; subst. unfold dag_dest. rewrite H0. simpl. constructor. }
  assert (U : unfolds shared 2 (tg [tf [ta; ta]])) by (repeat (econstructor; try reflexivity)).
  assert (Tp : topological shared) by topological.
  destruct (T6_total (node_meaning shared) tree_meaning shared twice 2 _ S A Tp eq_refl U)
    as (o & _ & R & _).
  exists o. split; [exact R |]. apply (T6_matches _ tree_meaning shared twice 2 _ o S A eq_refl U R).
  exists (fun _ => Some (VTerm ta)). repeat (econstructor; try reflexivity).
Qed.

(** ** T7: a recursive rule

    [μP(x). f(P(x)) ∥ x where x.op = a], replaced by [x]: zero, doubled any number of times. *)

Definition number (f : op) (vs : list nat) : nat :=
  match f with
  | 0 => 0
  | 3 => 2 * hd 0 vs
  | 4 => list_sum vs
  | _ => 1
  end.

Definition doubled_zero : definition :=
  Def [nx] [] [nx] [nx] (PAlt (pf [PCall 0 [nx]]) (PGuard (PVar nx) (op_is nx op_a))).

Definition zero : pattern :=
  PMu (d_params doubled_zero) (d_in doubled_zero) (d_out doubled_zero) (d_small doubled_zero)
    (d_body doubled_zero) [nx].

Lemma zero_node g den i (θ : env nat) :
  denotation number g den -> geval (Σ := nodes_of node_meaning g) θ (op_is nx op_a) = Some true ->
  θ nx = Some (VTerm i) -> den i = 0.
Proof.
  intros D G E. unfold op_is in G. simpl in G. rewrite E in G. simpl in G.
  destruct (dag_dest g i) as [f cs] eqn:Q. injection G as G. apply Nat.eqb_eq in G. simpl in G.
  subst f. now rewrite (D _ _ _ Q).
Qed.

Lemma zero_law g den :
  topological g -> denotation number g den ->
  law (Σ := nodes_of node_meaning g) number den zero (TVar nx).
Proof.
  intros Tp D.
  assert (Zero : forall n θ i, i < n ->
    matches (Σ := nodes_of node_meaning g) [doubled_zero] (d_body doubled_zero) θ i ->
    den i = 0 /\ forall j, θ nx = Some (VTerm j) -> den j = 0).
  { induction n as [| n IH]; intros θ i L M; [lia |]. inversion M; subst.
    - (* under one more f *)
      match goal with H : matches _ (pf _) _ _ |- _ => inversion H; subst end.
      match goal with H : matches_all _ _ _ _ |- _ => inversion H; subst end.
      match goal with H : matches_all _ [] _ _ |- _ => inversion H; subst end.
      match goal with H : matches _ (PCall _ _) _ _ |- _ => inversion H; subst end.
      match goal with H : skipn _ _ = _ |- _ => injection H as <- <- end.
      match goal with H : dest _ = _ |- _ => rename H into Q end. simpl in Q.
      match goal with H : matches _ _ (callenv _ _ _) ?c |- _ =>
        assert (c < i) as Lc; [| destruct (IH _ c ltac:(lia) H) as [Vc Vx]] end.
      { unfold dag_dest in Q. destruct (nth_error g i) as [nd |] eqn:N; [subst | discriminate].
        apply (Tp _ _ _ N). now left. }
      split; [rewrite (D _ _ _ Q); simpl; now rewrite Vc | exact Vx].
    - (* at x *)
      match goal with H : matches _ (PGuard _ _) _ _ |- _ => inversion H; subst end.
      match goal with H : matches _ (PVar _) _ _ |- _ => inversion H; subst end.
      split; [eapply zero_node; eauto |]. intros j E. eapply zero_node; eauto. }
  intros θ t v M R. inversion M as [| | | | | | | | | ? ? ? ? ? ? ? ? ? M1 |]; subst.
  destruct (Zero (S t) _ t (Nat.lt_succ_diag_r t) M1) as [Vt Vx].
  simpl in R. destruct (θ nx) as [[i | | |] |] eqn:E; try discriminate. injection R as <-.
  rewrite Vt. apply Vx. exact E.
Qed.

(** *** Rebuilding [g(f(f(a)), f(b))]: the nodes [f(a)] and [f(f(a))] become [a]. *)

Definition sums : dag := [(op_a, []); (op_b, []); (op_f, [0]); (op_f, [2]); (op_f, [1]); (op_g, [3; 4])].

Lemma sums_topological : topological sums.
Proof. topological. Qed.

Example rebuilt_sums :
  rebuild (apply_rule node_meaning 100 zero (TVar nx)) sums =
  ([(op_a, []); (op_b, []); (op_f, [0]); (op_f, [0]); (op_f, [1]); (op_g, [0; 4])], [0; 1; 0; 0; 4; 5]).
Proof. vm_compute. reflexivity. Qed.

Example rebuilt_values :
  let (g', μ) := rebuild (apply_rule node_meaning 100 zero (TVar nx)) sums in
  forall i, i < length sums -> node_den number g' (nth i μ 0) = node_den number sums i.
Proof.
  pose proof (T7_rebuild number node_meaning 100 zero (TVar nx) sums) as H.
  destruct (rebuild _ sums) as [g' μ].
  destruct H as (_ & _ & H); [| exact sums_topological | intros i L; apply (H i L)].
  intros g Tp. apply zero_law; auto. intros k f cs E.
  exact (node_den_compositional number (node_meaning g) g Tp k f cs E).
Qed.

(** *** Two outputs replaced together: [f(a)] and [g(a)], both by [a], in place. *)

Definition pair_of_zeros : list pattern :=
  [PGuard (pf [PVar nx]) (op_is nx op_a); pg [PVar nx]].

Lemma pair_laws g den :
  denotation number g den ->
  laws (Σ := nodes_of node_meaning g) number den pair_of_zeros [TVar nx; TVar nx].
Proof.
  intros D θ ts vs M R.
  repeat match goal with
  | H : matches_all _ _ _ _ |- _ => inversion H; subst; clear H
  | H : matches _ (PGuard _ _) _ _ |- _ => inversion H; subst; clear H
  | H : matches _ (pf _) _ _ |- _ => inversion H; subst; clear H
  | H : matches _ (pg _) _ _ |- _ => inversion H; subst; clear H
  | H : matches _ (PVar _) _ _ |- _ => inversion H; subst; clear H
  end.
  match goal with H : θ nx = Some (VTerm ?i) |- _ =>
    pose proof (zero_node g den i θ D ltac:(assumption) H) as Z; simpl in R; rewrite H in R end.
  injection R as <-. simpl.
  repeat match goal with H : θ nx = Some _, H' : θ nx = Some _ |- _ => rewrite H in H'; injection H' as <- end.
  repeat match goal with H : dest _ = _ |- _ => simpl in H; rewrite (D _ _ _ H); clear H end.
  simpl. now rewrite Z.
Qed.

Definition pairs : dag := [(op_a, []); (op_f, [0]); (op_g, [0]); (op_g, [1; 2])].
Definition paired : dag := [(op_a, []); (op_f, [0]); (op_g, [0]); (op_g, [0; 0])].

Example pair_replaced :
  replace_in_place node_meaning 100 pair_of_zeros [TVar nx; TVar nx] (Nat.eqb 0) pairs [1; 2] =
  Some (paired, [0; 0]).
Proof. vm_compute. reflexivity. Qed.

Example pair_values : acyclic paired /\ forall den, denotation number paired den -> den 3 = 0.
Proof.
  assert (Hr : ranked (fun k => k) pairs) by (apply topological_ranked; topological).
  destruct (T7_denotation number pairs) as [den D]; [now exists (fun k => k) |].
  destruct (T7_in_place number node_meaning 100 pair_of_zeros [TVar nx; TVar nx] (Nat.eqb 0)
    (fun k => k) 0 pairs [1; 2] paired [0; 0] den Hr D) as [A V];
    auto using pair_laws, pair_replaced.
  - intros k E. apply Nat.eqb_eq in E. subst k. simpl. lia.
  - intros i _. lia.
  - split; [exact A |]. intros den' D'. destruct (V den' D') as [_ V']. rewrite V' by (simpl; lia).
    assert (Da : den 0 = 0) by exact (D 0 op_a [] eq_refl).
    assert (Df : den 1 = 0) by (rewrite (D 1 op_f [0] eq_refl); simpl; now rewrite Da).
    assert (Dg : den 2 = 0) by (rewrite (D 2 op_g [0] eq_refl); simpl; now rewrite Da).
    rewrite (D 3 op_g [1; 2] eq_refl). simpl. now rewrite Df, Dg.
Qed.

(** *** And any number of such replacements, of which this is one *)

Example pairs_rewritten :
  rewritten node_meaning [(pair_of_zeros, [TVar nx; TVar nx])] pairs
    paired.
Proof.
  eapply (R_more node_meaning _ pairs pairs) with (rank := fun k => k) (place := 0) (is := [1; 2]);
    [constructor | now left | reflexivity | exact pair_replaced | | |].
  - apply topological_ranked. topological.
  - intros k E. apply Nat.eqb_eq in E. subst k. simpl. lia.
  - intros i _. lia.
Qed.

Example rewritten_values G den :
  rewritten node_meaning [(pair_of_zeros, [TVar nx; TVar nx])] pairs G ->
  denotation number pairs den ->
  acyclic G /\ forall den', denotation number G den' -> forall k, k < 4 -> den' k = den k.
Proof.
  intros H D. destruct (T7_sequence number node_meaning [(pair_of_zeros, [TVar nx; TVar nx])] pairs G den)
    as (A & _ & V); auto.
  - intros ps rs [[= <- <-] | []] g den' D'. now apply pair_laws.
  - exists (fun k => k). apply topological_ranked. topological.
Qed.

(** ** T9: a run that leaves out calls

    [f(μP(). (a ∥ a), μP(). (a ∥ a))], at [f(a, a)]: each call has an answer for each alternate, so the
    machine has four.  The first call is not searched for a second answer, and the second call, which is
    like it, not at all. *)

Definition either_a : pattern := PMu [] [] [] [] (PAlt pa pa) [].

Definition call_a : call :=
  Call empty [([], [IAlt [IOp op_a 0] [IOp op_a 0]])] (callenv [] [] ρ0)
    [IAlt [IOp op_a 0] [IOp op_a 0]] ta.

Example four_answers :
  exists r, run 100 (init (pf [either_a; either_a]) (tf [ta; ta])) = Some r /\ length r = 4.
Proof. eexists. split; vm_compute; reflexivity. Qed.

Example one_answer :
  tabling [] (code_search (pf [either_a; either_a]) (tf [ta; ta])) [(empty, [ta; tf [ta; ta]])].
Proof.
  apply T_step. cbn.
  apply (T_first [] _ call_a
           (VM empty [ta] [([], ρ0)] [IMu [] [IAlt [IOp op_a 0] [IOp op_a 0]] []])
           [tf [ta; ta]] empty [ta; tf [ta; ta]] [(empty, [ta; tf [ta; ta]])]
           [(empty, [ta; tf [ta; ta]])] [] [] []).
  - now apply Calls.
  - intros x l. discriminate.
  - do 2 (apply T_step; cbn). apply T_success. apply T_step. cbn. apply T_success, T_failure.
  - apply (T_done [] _ call_a call_a (VM empty [] [([], ρ0)] [])
      [ta; tf [ta; ta]] empty [ta] [(empty, [ta])]).
    + now apply Calls.
    + split; [split; [now intros n _ | now intros x l] |].
      exists [Def [] [] [] [] (PAlt pa pa)], (PAlt pa pa). now split.
    + intros x l. discriminate.
    + repeat split; auto; intros; congruence.
    + cbn. do 2 (apply C_step; cbn). apply C_success. apply C_step. cbn. apply C_success, C_failure.
    + intros t [<- | []]. now left.
    + apply T_success, T_failure.
  - apply D_skip, D_failure.
  - apply T_failure.
Qed.

(** *** A call that failed: [f(μP(). b) ∥ f(μP(). b)], at [f(a)]

    It is written down, and neither alternate searches it. *)

Definition never : pattern := PMu [] [] [] [] pb [].

Definition call_b : call :=
  Call empty [([], [IOp op_b 0])] (callenv [] [] ρ0) [IOp op_b 0] ta.

Lemma like_itself (f : call (T := term)) : like f f.
Proof. repeat split; auto; congruence. Qed.

Example failed_once :
  tabling [] (code_search (PAlt (pf [never]) (pf [never])) (tf [ta])) [].
Proof.
  apply T_step. cbn. apply (T_record [] call_b []).
  - split; [split; [now intros n _ | now intros x l] |]. exists [Def [] [] [] [] pb], pb. now split.
  - apply T_step. apply T_failure.
  - apply T_step. cbn. eapply (T_again [call_b] _ call_b call_b);
      [now apply Calls | now left | apply like_itself |].
    apply T_step. cbn. eapply (T_again [call_b] _ call_b call_b);
      [now apply Calls | now left | apply like_itself | apply T_failure].
Qed.

Example failed_for_good :
  exists r, visiting (search (PAlt (pf [never]) (pf [never])) (tf [ta])) r /\ shorter same_bindings [] r [].
Proof. apply T9_tabling, failed_once. Qed.

(** ** Several roots: [f(f(a))] and [g(a)], which share [a] *)

Example two_roots : exists σ o, init_roots [zero; pg [PVar nx]] [tf [tf [ta]]; tg [ta]] ⇓ σ :: o.
Proof.
  destruct (roots_termination [zero; pg [PVar nx]] [tf [tf [ta]]; tg [ta]] eq_refl) as [o A].
  destruct (run 100 (init_roots [zero; pg [PVar nx]] [tf [tf [ta]]; tg [ta]])) as [r |] eqn:R;
    [| discriminate R].
  apply run_sound in R as A'. rewrite (T5_deterministic _ _ _ A A') in A.
  vm_compute in R. injection R as <-. eauto.
Qed.

(** ** T9: the index, and the search for another output *)

From PyPM Require Import Items States Sharing.

(** A table of the items of [f(a)] and [a]. *)
Definition item_a : item := Applied (Some op_a) [].
Definition item_fa : item := Applied (Some op_f) [item_a].
Definition numbers_of (n : nat) (i : item) : Prop := (n, i) = (0, item_a) \/ (n, i) = (1, item_fa).
Definition item_table : list States.entry := [EApplied (Some op_a) []; EApplied (Some op_f) [0]].

Definition reads_none (_ : guard) : bool := false.
Definition one_version (_ : recursion) (_ : expected) : bool := false.

Example numbers_stand n i :
  numbers_of n i -> represented item_table (T := term) reads_none one_version numbers_of n i.
Proof.
  intros [[= -> ->] | [= -> ->]]; [exists [] | exists [0]]; repeat constructor.
Qed.

Example indexed : exists s, state_of item_table (tf [ta]) s /\ In 1 s.
Proof.
  destruct (T9_total item_table (tf [ta])) as [s S]. exists s. split; [exact S |].
  apply (T9_states reads_none one_version item_table numbers_of (pf [pa]) (fun _ => None) (tf [ta]) s 1
    numbers_stand); [| exact S | now right].
  repeat (econstructor; try reflexivity).
Qed.

(** The outputs [g(x)] and [f(f(x))]: the second is above [x] through [f] alone. *)
Definition nodes_terms (n : nat) : term := nth n [ta; tg [ta]; tf [ta]; tf [tf [ta]]] ta.
Definition nodes_children (n : nat) : list nat := nth n [[]; [0]; [0]; [2]] [].
Definition x_is_a : env term := fun x => if Nat.eqb x nx then Some (VTerm ta) else None.

Example found_other :
  reached nat nodes_terms nodes_children (Some [op_f; op_f])
    (fun m => exists x, In x [nx] /\ In x [nx] /\ x_is_a x = Some (VTerm (nodes_terms m))) 3.
Proof.
  apply (T9_found_above nat nodes_terms nodes_children [pg [PVar nx]] (pf [pf [PVar nx]]) [] x_is_a
    [1] 3 [] [nx]).
  - intros [| [| [| [| n]]]] f ts; try (now intros [= <- <-]). unfold nodes_terms, nodes_children.
    simpl. destruct n; now intros [= <- <-].
  - repeat (econstructor; try reflexivity).
  - reflexivity.
  - exists nx. split; now left.
Qed.
