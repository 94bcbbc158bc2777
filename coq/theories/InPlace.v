(** * Replacement in place (T7)

    A match is replaced without rebuilding the graph: the nodes of the right-hand sides are appended,
    and the users that the matched nodes had before are redirected to their roots.  (Not the new nodes:
    see C11.)  A rule may have several outputs, which are replaced together.  If the right-hand sides
    use only nodes that rank no higher than the place at which they are put, and the matched nodes rank
    no lower, the graph stays acyclic, and every old node keeps its value. *)

From Coq Require Import List Bool PeanoNat Lia.
Import ListNotations.
From PyPM Require Import Names Values Terms Guards Patterns Declarative Stores Machine Enumeration
  Roots Dag Templates Emission Rewriting.

(** ** Acyclic graphs *)

(** Children exist and rank below their parents. *)
Definition ranked (rank : nat -> nat) (g : dag) : Prop :=
  forall k f cs c, nth_error g k = Some (f, cs) -> In c cs -> c < length g /\ rank c < rank k.

Definition acyclic (g : dag) : Prop := exists rank, ranked rank g.

Lemma topological_ranked g : topological g -> ranked (fun k => k) g.
Proof.
  intros Tp k f cs c N I. assert (k < length g) by (apply nth_error_Some; congruence).
  pose proof (Tp _ _ _ N c I). lia.
Qed.

(** ** Redirecting users *)

(** What stands for [c] when the nodes [is] are replaced by the nodes [js]. *)
Fixpoint instead (is js : list nat) (c : nat) : nat :=
  match is, js with
  | i :: is, j :: js => if Nat.eqb c i then j else instead is js c
  | _, _ => c
  end.

Definition redirect (to : nat -> nat) (n : node) : node := (fst n, map to (snd n)).

(** The users of a node [c] among the nodes of [g] become users of [to c]; the nodes that [g'] has
    beyond those of [g] stay as they are. *)
Definition redirect_users (to : nat -> nat) (g g' : dag) : dag :=
  map (redirect to) g ++ skipn (length g) g'.

Section InPlace.
Context {Δ : Domain} {V : Type}.
Variable sem : op -> list V -> V.

(** A denotation of the nodes of a graph, compositional as in [Templates.v]. *)
Definition denotation (g : dag) (den : nat -> V) : Prop :=
  forall k f cs, dag_dest g k = (f, cs) -> den k = sem f (map den cs).

(** *** Every acyclic graph has one *)

Fixpoint value_at (g : dag) (n k : nat) : V :=
  match n with
  | 0 => outside sem
  | S n => let (f, cs) := dag_dest g k in sem f (map (value_at g n) cs)
  end.

Lemma dag_dest_ranked rank g k f cs c :
  ranked rank g -> dag_dest g k = (f, cs) -> In c cs -> c < length g /\ rank c < rank k.
Proof.
  unfold dag_dest. intros H. destruct (nth_error g k) as [n |] eqn:N.
  - intros -> I. eapply H; eauto.
  - intros [= <- <-] [].
Qed.

Lemma value_at_stable rank g :
  ranked rank g -> forall n m k, rank k < n -> rank k < m -> value_at g n k = value_at g m k.
Proof.
  intros H. induction n as [| n IH]; intros [| m] k Ln Lm; try lia. simpl.
  destruct (dag_dest g k) as [f cs] eqn:D. f_equal. apply map_ext_in. intros c I.
  destruct (dag_dest_ranked _ _ _ _ _ _ H D I). apply IH; lia.
Qed.

Theorem denotation_exists g : acyclic g -> exists den, denotation g den.
Proof.
  intros [rank H]. exists (fun k => value_at g (S (rank k)) k). intros k f cs D.
  cbn [value_at]. rewrite D. f_equal. apply map_ext_in. intros c I.
  destruct (dag_dest_ranked _ _ _ _ _ _ H D I).
  apply (value_at_stable rank g H (rank k) (S (rank c))); lia.
Qed.

(** ** The graph after a replacement *)

Section Replacement.
Variables (g : dag) (rank : nat -> nat) (place : nat) (allowed : nat -> bool).
Hypothesis g_ranked : ranked rank g.

(** The right-hand sides use nodes that rank no higher than the place. *)
Hypothesis allowed_below : forall k, allowed k = true -> k < length g /\ rank k <= place.

(** What is appended uses allowed nodes, and new ones before it. *)
Variable g' : dag.
Hypothesis g'_extends : extension g g'.
Hypothesis new_usable : new_nodes_ok allowed (length g) g'.

(** What is redirected ranks no lower than the place, and is redirected to what may be used there. *)
Variable to : nat -> nat.
Hypothesis redirected : forall c, to c <> c ->
  place <= rank c /\ usable allowed (length g) (length g') (to c).

Let G := redirect_users to g g'.

(** Between the rank of the place and the next one there is room for the new nodes. *)
Definition new_rank (k : nat) : nat :=
  let room := S (length g') in
  if Nat.ltb k (length g) then rank k * room else place * room + S k.

Lemma old_node k n : k < length g -> nth_error G k = Some n ->
  exists n', nth_error g k = Some n' /\ n = redirect to n'.
Proof.
  intros L N. unfold G, redirect_users in N. rewrite nth_error_app1 in N by now rewrite map_length.
  rewrite nth_error_map in N. destruct (nth_error g k) as [n' |]; [| discriminate].
  injection N as <-. eauto.
Qed.

Lemma new_node k : length g <= k -> nth_error G k = nth_error g' k.
Proof.
  intros L. destruct g'_extends as [e X]. unfold G, redirect_users.
  rewrite nth_error_app2 by now rewrite map_length. rewrite map_length, X.
  rewrite (nth_error_app2 _ _ L), skipn_app, skipn_all, Nat.sub_diag. reflexivity.
Qed.

Lemma G_length : length G = length g'.
Proof.
  destruct g'_extends as [e X]. unfold G, redirect_users.
  rewrite app_length, map_length, skipn_length, X, app_length. lia.
Qed.

Lemma usable_ranked k c :
  usable allowed (length g) k c -> k <= length g' ->
  c < length g' /\ new_rank c <= place * S (length g') + k.
Proof.
  pose proof (extension_length _ _ g'_extends) as L. unfold new_rank. intros [A | [L1 L2]] Lk.
  - destruct (allowed_below c A) as [Lc Rc]. apply Nat.ltb_lt in Lc as B. rewrite B.
    pose proof (Nat.mul_le_mono_r _ _ (S (length g')) Rc). lia.
  - apply Nat.ltb_ge in L1 as B. rewrite B. lia.
Qed.

Theorem replacement_acyclic : ranked new_rank G.
Proof.
  pose proof (extension_length _ _ g'_extends) as L.
  intros k f cs c N I. rewrite G_length. destruct (Nat.lt_ge_cases k (length g)) as [Lk | Lk].
  - apply old_node in N as ([f0 cs0] & N & E); auto. injection E as -> ->.
    apply in_map_iff in I as (c0 & E & I). destruct (g_ranked _ _ _ _ N I) as [L0 R0].
    assert (room : new_rank k = rank k * S (length g')).
    { unfold new_rank. apply Nat.ltb_lt in Lk. now rewrite Lk. }
    pose proof (Nat.mul_le_mono_r _ _ (S (length g')) R0) as M. simpl in M.
    destruct (Nat.eq_dec (to c0) c0) as [Same | Other]; subst c.
    + rewrite Same. split; [lia |]. unfold new_rank at 1. apply Nat.ltb_lt in L0. rewrite L0. lia.
    + destruct (redirected c0 Other) as [P U].
      destruct (usable_ranked _ _ U (Nat.le_refl _)) as [Lj Rj].
      pose proof (Nat.mul_le_mono_r _ _ (S (length g')) P). lia.
  - rewrite new_node in N by exact Lk. assert (k < length g') by (apply nth_error_Some; congruence).
    destruct (usable_ranked k c) as [Lc Rc]; [eapply new_usable; eauto | lia |]. split; auto.
    unfold new_rank at 2. apply Nat.ltb_ge in Lk. rewrite Lk. lia.
Qed.

(** *** Values *)

Variables (den den' : nat -> V).
Hypothesis den_g : denotation g den.
Hypothesis den'_G : denotation G den'.

Lemma old_dest k f cs :
  k < length g -> dag_dest g k = (f, cs) -> dag_dest G k = (f, map to cs).
Proof.
  intros L D. unfold dag_dest in *.
  destruct (nth_error G k) as [n |] eqn:N.
  - apply old_node in N as (n' & N & ->); auto. rewrite N in D. subst n'. reflexivity.
  - apply nth_error_None in N. rewrite G_length in N.
    pose proof (extension_length _ _ g'_extends). lia.
Qed.

(** Nodes that rank no higher than the place do not use what is redirected. *)
Lemma low_value n : forall k, rank k < n -> k < length g -> rank k <= place -> den' k = den k.
Proof.
  induction n as [| n IH]; intros k Ln L R; [lia |].
  destruct (dag_dest g k) as [f cs] eqn:D.
  rewrite (den_g _ _ _ D), (den'_G _ _ _ (old_dest _ _ _ L D)), map_map. f_equal.
  apply map_ext_in. intros c I. destruct (dag_dest_ranked _ _ _ _ _ _ g_ranked D I) as [Lc Rc].
  destruct (Nat.eq_dec (to c) c) as [E | E]; [rewrite E; apply IH; lia |].
  destruct (redirected c E). lia.
Qed.

(** Hence the new nodes denote what the right-hand sides do. *)
Lemma replacement_new_values : new_values sem den allowed (length g) g' den'.
Proof.
  split.
  - intros k f cs L N. apply den'_G. unfold dag_dest. now rewrite new_node, N.
  - intros k A. destruct (allowed_below k A). apply (low_value (S (rank k))); auto.
Qed.

(** What is redirected goes to what has its value. *)
Hypothesis same_value : forall c, to c <> c -> den' (to c) = den c.

Theorem replacement_value n : forall k, rank k < n -> k < length g -> den' k = den k.
Proof.
  induction n as [| n IH]; intros k Ln L; [lia |].
  destruct (dag_dest g k) as [f cs] eqn:D.
  rewrite (den_g _ _ _ D), (den'_G _ _ _ (old_dest _ _ _ L D)), map_map. f_equal.
  apply map_ext_in. intros c I. destruct (dag_dest_ranked _ _ _ _ _ _ g_ranked D I) as [Lc Rc].
  destruct (Nat.eq_dec (to c) c) as [E | E]; [rewrite E; apply IH; lia | auto].
Qed.
End Replacement.

(** ** Match, and replace in place *)

Variable dag_meaning : dag -> interpretation nat.

(** The outputs [is] of a match are replaced together, by the right-hand sides [rs]. *)
Definition replace_in_place (fuel : nat) (ps : list pattern) (rs : list template)
    (allowed : nat -> bool) (g : dag) (is : list nat) : option (dag * list nat) :=
  match run (Σ := nodes_of dag_meaning g) fuel (init_roots ps is) with
  | Some (σ :: _) =>
      match emit_all (emit allowed (theta σ)) rs g with
      | Some (g', js) => Some (redirect_users (instead is js) g g', js)
      | None => None
      end
  | _ => None
  end.

Lemma instead_in is : forall js c,
  instead is js c <> c -> In c is /\ In (instead is js c) js.
Proof.
  induction is as [| i is IH]; intros [| j js] c N; simpl in *; try congruence.
  destruct (Nat.eqb_spec c i) as [E | E]; [auto |]. destruct (IH js c N). auto.
Qed.

Lemma instead_value (den den' : nat -> V) is : forall js c,
  map den' js = map den is -> instead is js c <> c -> den' (instead is js c) = den c.
Proof.
  induction is as [| i is IH]; intros [| j js] c E N; simpl in *; try congruence.
  injection E as E Es. destruct (Nat.eqb_spec c i) as [-> | Q]; auto.
Qed.

Theorem replace_in_place_sound fuel ps rs allowed rank place g is G js den :
  ranked rank g -> denotation g den ->
  (forall k, allowed k = true -> k < length g /\ rank k <= place) ->
  (forall i, In i is -> place <= rank i) ->
  length ps = length is ->
  laws (Σ := nodes_of dag_meaning g) sem den ps rs ->
  replace_in_place fuel ps rs allowed g is = Some (G, js) ->
  acyclic G /\
  forall den', denotation G den' ->
    map den' js = map den is /\ forall k, k < length g -> den' k = den k.
Proof.
  intros Hg Hd Below Above Len Law E. unfold replace_in_place in E.
  destruct (run _ _) as [[| σ o] |] eqn:R; try discriminate.
  destruct (emit_all _ rs g) as [[g' js'] |] eqn:Em; [| discriminate].
  injection E as <- <-. destruct (emitted_all sem den _ _ _ _ _ _ Em) as [X New Root Val].
  assert (M : matches_all (Σ := nodes_of dag_meaning g) [] ps (theta σ) is).
  { apply run_sound in R. eapply roots_answers_sound; [exact Len | exact R | now left |].
    apply extends_refl. }
  assert (Redirected : forall c, instead is js' c <> c ->
    place <= rank c /\ usable allowed (length g) (length g') (instead is js' c)).
  { intros c N. apply instead_in in N as [I J]. rewrite Forall_forall in Root. auto. }
  split; [eexists; eapply replacement_acyclic; eauto |]. intros den' Hd'.
  assert (Same : map den' js' = map den is).
  { eapply (Law (theta σ)); [exact M |]. apply Val. eapply replacement_new_values; eauto. }
  split; auto. intros k L.
  eapply replacement_value; eauto using instead_value.
Qed.
(** ** Any number of replacements

    By rules of a set, at any places in any order: what a driver does. *)

Section Sequence.
Variable rules : list (list pattern * list template).

Inductive rewritten (g : dag) : dag -> Prop :=
| R_none : rewritten g g
| R_more G G' fuel ps rs allowed rank place is js :
    rewritten g G ->
    In (ps, rs) rules -> length ps = length is ->
    replace_in_place fuel ps rs allowed G is = Some (G', js) ->
    ranked rank G ->
    (forall k, allowed k = true -> k < length G /\ rank k <= place) ->
    (forall i, In i is -> place <= rank i) ->
    rewritten g G'.

(** A rule has its law in every graph. *)
Definition lawful (ps : list pattern) (rs : list template) : Prop :=
  forall g den, denotation g den -> laws (Σ := nodes_of dag_meaning g) sem den ps rs.

Lemma replace_in_place_longer fuel ps rs allowed g is G js :
  replace_in_place fuel ps rs allowed g is = Some (G, js) -> length g <= length G.
Proof.
  unfold replace_in_place. destruct (run _ _) as [[| σ o] |]; try discriminate.
  destruct (emit_all _ rs g) as [[g' js'] |] eqn:E; [| discriminate]. intros [= <- _].
  apply (emitted_all sem (fun _ => outside sem)) in E as [X _ _ _].
  rewrite (G_length g g' X). now apply extension_length.
Qed.

Theorem rewritten_sound g G den :
  (forall ps rs, In (ps, rs) rules -> lawful ps rs) ->
  acyclic g -> denotation g den -> rewritten g G ->
  acyclic G /\ length g <= length G /\
  forall den', denotation G den' -> forall k, k < length g -> den' k = den k.
Proof.
  intros Law A D H.
  induction H as [| G G' fuel ps rs allowed rank place is js _ (A1 & L1 & V1) I Len E Hr Below Above].
  - repeat split; auto. intros den' D' k L. destruct A as [rank Hr].
    enough (X : forall n k, rank k < n -> k < length g -> den' k = den k) by eauto.
    induction n as [| n IH]; intros k' Ln L'; [lia |].
    destruct (dag_dest g k') as [f cs] eqn:Q. rewrite (D _ _ _ Q), (D' _ _ _ Q). f_equal.
    apply map_ext_in. intros c Ic. destruct (dag_dest_ranked _ _ _ _ _ _ Hr Q Ic). apply IH; lia.
  - destruct (denotation_exists G A1) as [den1 D1].
    destruct (replace_in_place_sound _ _ _ _ _ _ _ _ _ _ _ Hr D1 Below Above Len (Law _ _ I G den1 D1) E)
      as [A2 V2].
    pose proof (replace_in_place_longer _ _ _ _ _ _ _ _ E) as L2.
    repeat split; [exact A2 | lia |]. intros den' D' k L.
    rewrite (proj2 (V2 den' D') k) by lia. auto.
Qed.
End Sequence.
End InPlace.
