(** * The incremental driver is complete

    A driver that rewrites a graph in place keeps a list of pending nodes.  It takes one of them; if no
    rule matches there, or all that match decline, it drops the node.  Otherwise it replaces the match,
    and puts back the nodes that the replacement touched (the new ones, and the redirected users) with
    all that is above them: what is below any other node is as it was.  So when nothing is pending,
    there is nothing left to rewrite.

    Rules have one root.  Terms are nodes, compared by identity, as in [Dag.v]. *)

From Coq Require Import List Bool PeanoNat Lia.
Import ListNotations.
From PyPM Require Import Names Values Terms Guards Patterns Declarative Stores Machine WellFormed
  Guarded Enumeration Termination Simulation Dag Templates Emission Rewriting InPlace
  RuleSet Locality.

Section Driver.
Context {Δ : Domain}.
Variable dag_meaning : dag -> interpretation nat.
Hypothesis meaning_local : local_meaning dag_meaning.

Notation nodes := (nodes_of dag_meaning).


(** ** The driver *)

(** A set of rules is a list of patterns and a body: what becomes of a match of rule [r] at [i] under
    the environment [θ].  [None]: the rule declines.  [Some (g', j)]: nodes are appended, and [j], new
    or old, takes the place of the match.  A body uses what is below the match only. *)
Definition body : Type := dag -> nat -> nat -> env nat -> option (dag * nat).

Definition uses_below (b : body) : Prop :=
  forall g i r θ g' j, b g i r θ = Some (g', j) ->
  extension g g' /\ exists allowed, (forall k, allowed k = true -> below g i k) /\
    new_nodes_ok allowed (length g) g' /\ usable allowed (length g) (length g') j.

(** Templates as right-hand sides, behind a judge that may decline. *)
Definition template_body (allowed : dag -> nat -> nat -> bool)
    (judge : dag -> nat -> nat -> env nat -> bool) (rhs : list template) : body :=
  fun g i r θ =>
    match nth_error rhs r with
    | Some t => if judge g i r θ then emit (allowed g i) θ t g else None
    | None => None
    end.

Lemma template_body_uses_below allowed judge rhs :
  (forall g i k, allowed g i k = true -> below g i k) ->
  uses_below (template_body allowed judge rhs).
Proof.
  intros A g i r θ g' j E. unfold template_body in E.
  destruct (nth_error rhs r) as [t |]; [| discriminate]. destruct (judge _ _ _ _); [| discriminate].
  apply (emitted_one (fun _ _ => tt) (fun _ => tt)) in E as [X New Root _].
  split; auto. exists (allowed g i). inversion Root; subst. auto.
Qed.

Variable rules : list pattern.
Variable act : body.
Hypothesis act_below : uses_below act.

(** The one node whose children are the results of the graph. *)
Variable output : nat.
Definition live (g : dag) (k : nat) : Prop := below g output k.

(** The first answer, in the order of the rules, that is not declined. *)
Definition accepts (g : dag) (i : nat) (a : nat * store nat) : bool :=
  match act g i (fst a) (theta (snd a)) with Some _ => true | None => false end.

Definition choice (g : dag) (i : nat) (os : list (list (store nat))) : option (nat * store nat) :=
  find (accepts g i) (in_order 0 os).

(** Where nothing is declined, it is the match of the set. *)
Lemma choice_first g i os :
  (forall a, In a (in_order 0 os) -> accepts g i a = true) -> choice g i os = first_rule 0 os.
Proof.
  intros A. rewrite <- in_order_first. unfold choice.
  destruct (in_order 0 os) as [| a l]; simpl; auto. now rewrite (A a (or_introl eq_refl)).
Qed.

Definition all_answers (g : dag) (i : nat) (os : list (list (store nat))) : Prop :=
  Forall2 (fun p o => answers (Σ := nodes g) (init p i) o) rules os.

(** Rule [r] has the answer [σ] at [i]. *)
Definition answer (g : dag) (i r : nat) (σ : store nat) : Prop :=
  exists p o, nth_error rules r = Some p /\ answers (Σ := nodes g) (init p i) o /\ In σ o.

(** The new nodes, and the redirected users. *)
Definition touched (g G : dag) (i k : nat) : Prop := length g <= k < length G \/ child g k i.

(** All that may match anew is pending: what is above a touched node, and the nodes at which an answer
    was declined that no longer is (a body may look at more than what is below the match). *)
Definition put_back (g G : dag) (i : nat) (pending : list nat) : Prop :=
  (forall k t, touched g G i t -> below G k t -> In k pending) /\
  (forall k r σ, answer g k r σ -> act g k r (theta σ) = None -> act G k r (theta σ) <> None ->
    In k pending).

(** One step, on a graph and the pending nodes, which may be taken in any order. *)
Inductive drives : dag * list nat -> dag * list nat -> Prop :=
| D_dead g pending pending' i :
    In i pending -> ~ live g i ->
    incl pending (i :: pending') -> drives (g, pending) (g, pending')
| D_drop g pending pending' i os :
    In i pending -> all_answers g i os -> choice g i os = None ->
    incl pending (i :: pending') -> drives (g, pending) (g, pending')
| D_replace g pending pending' i os r σ g' j G :
    In i pending -> live g i -> all_answers g i os -> choice g i os = Some (r, σ) ->
    act g i r (theta σ) = Some (g', j) -> G = redirect_users (instead [i] [j]) g g' ->
    incl pending pending' -> put_back g G i pending' ->
    drives (g, pending) (G, pending').

Inductive drives_to : dag * list nat -> dag * list nat -> Prop :=
| D_refl s : drives_to s s
| D_step s s' s'' : drives s s' -> drives_to s' s'' -> drives_to s s''.

(** ** The graph after a replacement *)

Section Replaced.
Variables (g : dag) (i r : nat) (θ : env nat) (g' : dag) (j : nat).
Hypothesis acted : act g i r θ = Some (g', j).

Let G := redirect_users (instead [i] [j]) g g'.

Lemma extended : extension g g'.
Proof. eapply act_below, acted. Qed.

Lemma longer : length g <= length G.
Proof. unfold G. rewrite (G_length g g' extended). apply extension_length, extended. Qed.

(** A node that is not touched has the operator and the children that it had. *)
Lemma untouched_dest c : ~ touched g G i c -> dag_dest G c = dag_dest g c.
Proof.
  intros N. pose proof longer. destruct (Nat.lt_ge_cases c (length g)) as [L | L].
  - destruct (dag_dest g c) as [f cs] eqn:D. unfold G. rewrite (old_dest g g' extended _ c f cs L D).
    f_equal. rewrite <- (map_id cs) at 2. apply map_ext_in. intros d I. simpl.
    destruct (Nat.eqb_spec d i) as [-> |]; auto. elim N. right. unfold child. now rewrite D.
  - unfold touched in N. unfold dag_dest. rewrite !(proj2 (nth_error_None _ _)); auto; lia.
Qed.

Hypothesis live_i : live g i.
Hypothesis acyclic_g : acyclic g.
Hypothesis output_g : output < length g.

Lemma replaced_acyclic : acyclic G.
Proof.
  destruct acyclic_g as [rank H]. destruct (act_below _ _ _ _ _ _ acted) as (X & al & A & New & Root).
  destruct (below_ranked _ _ _ _ H live_i output_g) as [Li _].
  eexists. apply (replacement_acyclic g rank (rank i) al H); eauto.
  - intros k Ak. apply (below_ranked rank g i k H); auto.
  - intros c N. simpl in *. destruct (Nat.eqb_spec c i) as [E | E]; [subst c; auto | congruence].
Qed.

(** What is live is new, or was live before. *)
Lemma still_live k : live G k -> live g k \/ length g <= k < length G.
Proof.
  destruct (act_below _ _ _ _ _ _ acted) as (X & al & A & New & Root).
  assert (Use : forall m c, m <= length g' -> usable al (length g) m c ->
                live g c \/ length g <= c < length G).
  { unfold G. rewrite (G_length g g' X). intros m c Lm [U | U]; [left | right; lia].
    exact (below_trans _ _ _ _ live_i (A c U)). }
  assert (Edge : forall a c, child G a c -> live g a \/ length g <= a < length G ->
                 live g c \/ length g <= c < length G).
  { intros a c K [La | La].
    - destruct acyclic_g as [rank H]. destruct (below_ranked _ _ _ _ H La output_g) as [L _].
      unfold child, G in K. destruct (dag_dest g a) as [f cs] eqn:D.
      rewrite (old_dest g g' X _ a f cs L D) in K. apply in_map_iff in K as (d & E & I). simpl in E.
      destruct (Nat.eqb d i); subst c; [exact (Use _ _ (Nat.le_refl _) Root) |]. left.
      apply (below_trans _ _ _ _ La), (B_child g a d d); [unfold child; now rewrite D | constructor].
    - unfold child, dag_dest, G in K. rewrite (new_node g g' X) in K by lia.
      destruct (nth_error g' a) as [[f cs] |] eqn:N; [| destruct K].
      apply (Use a); [| eapply New; eauto; lia]. apply Nat.lt_le_incl, nth_error_Some. congruence. }
  assert (Path : forall a c, below G a c -> live g a \/ length g <= a < length G ->
                 live g c \/ length g <= c < length G) by (induction 1; eauto).
  intros B. apply (Path output); auto. left. constructor.
Qed.
End Replaced.

(** If bodies look at what is below a match only, to put back what is above suffices. *)
Definition local_body (b : body) : Prop :=
  forall g h k r θ, (forall c, below g k c -> dag_dest g c = dag_dest h c) ->
  b h k r θ = None -> b g k r θ = None.

Lemma local_put_back g i r θ g' j pending (G := redirect_users (instead [i] [j]) g g') :
  local_body act -> act g i r θ = Some (g', j) ->
  (forall k t, touched g G i t -> below G k t -> In k pending) -> put_back g G i pending.
Proof.
  intros Loc E Above. split; auto. intros k r' σ _ N1 N2.
  destruct (in_dec Nat.eq_dec k pending) as [I | I]; auto. elim N2. apply (Loc G g); auto.
  intros c B. apply (untouched_dest g i r θ g' j E). intros Tc. elim I. exact (Above _ _ Tc B).
Qed.

(** ** The invariant: what is live and not pending has nothing left to rewrite *)

Definition settled (g : dag) (k : nat) : Prop :=
  forall r σ, answer g k r σ -> act g k r (theta σ) = None.

Definition invariant (s : dag * list nat) : Prop :=
  acyclic (fst s) /\ output < length (fst s) /\
  forall k, live (fst s) k -> In k (snd s) \/ settled (fst s) k.

Lemma in_order_in os : forall n r o (σ : store nat),
  nth_error os r = Some o -> In σ o -> In (n + r, σ) (in_order n os).
Proof.
  induction os as [| o' os IH]; intros n [| r] o σ N I; try discriminate; simpl; apply in_app_iff.
  - injection N as ->. left. rewrite Nat.add_0_r. now apply in_map.
  - right. rewrite <- Nat.add_succ_comm. eauto.
Qed.

Lemma dropped_settled g i os : all_answers g i os -> choice g i os = None -> settled g i.
Proof.
  intros H E r σ (p & o & N & R & I).
  assert (exists o', nth_error os r = Some o' /\ answers (Σ := nodes g) (init p i) o')
    as (o' & N' & R').
  { clear E. revert r N. induction H as [| p' o' ps os' H' _ IH]; intros [| r] N; try discriminate.
    - injection N as ->. exists o'. auto.
    - exact (IH r N). }
  rewrite <- (answers_deterministic (Σ := nodes g) _ _ _ R R') in N'.
  pose proof (find_none _ _ E _ (in_order_in os 0 r o σ N' I)) as F. unfold accepts in F. simpl in F.
  destruct (act g i r (theta σ)); congruence.
Qed.

Theorem drives_invariant s s' : drives s s' -> invariant s -> invariant s'.
Proof.
  assert (Less : forall g pending pending' i, invariant (g, pending) -> incl pending (i :: pending') ->
    (live g i -> settled g i) -> invariant (g, pending')).
  { intros g pending pending' i (A & O & H) S D. split; [| split]; auto. simpl in *. intros k L.
    destruct (H k L) as [I | I]; auto. destruct (S k I) as [<- | I']; auto. }
  destruct 1 as [g pending pending' i _ N S | g pending pending' i os _ R E S
                | g pending pending' i os r σ g' j G _ L R E B -> S [Above Judge]]; intros Inv.
  - apply (Less g pending pending' i); tauto.
  - apply (Less g pending pending' i); auto. intros _. eapply dropped_settled; eauto.
  - destruct Inv as (A & O & H). unfold invariant. cbn [fst snd] in *. split; [| split].
    + eapply replaced_acyclic; eauto.
    + eapply Nat.lt_le_trans; [exact O | eapply longer; eauto].
    + intros k Lk. destruct (in_dec Nat.eq_dec k pending') as [I | I]; auto. right.
      assert (Same : forall c, below (redirect_users (instead [i] [j]) g g') k c ->
        dag_dest (redirect_users (instead [i] [j]) g g') c = dag_dest g c).
      { intros c Bc. eapply untouched_dest; eauto. }
      intros r' σ' (p & o & N & R' & I'). apply (same_answers meaning_local _ _ _ _ _ Same) in R'.
      assert (X : answer g k r' σ') by (exists p, o; auto).
      destruct (act (redirect_users (instead [i] [j]) g g') k r' (theta σ')) eqn:Ea; auto. elim I.
      eapply Judge; eauto; [| congruence].
      destruct (still_live g i r (theta σ) g' j B L A O k Lk) as [Lk' | New].
      * destruct (H k Lk') as [I2 | D]; [elim I; auto | now apply D].
      * elim I. apply (Above k k); [now left | constructor].
Qed.

Corollary drives_to_invariant s s' : drives_to s s' -> invariant s -> invariant s'.
Proof. induction 1; eauto using drives_invariant. Qed.

(** ** At quiet *)

Hypothesis rules_checked : forall p, In p rules -> wf p = true /\ guarded p = true.

Lemma checked_answers g p k :
  acyclic g -> guarded p = true -> exists o, answers (Σ := nodes g) (init p k) o.
Proof.
  intros [rank H] Gd.
  assert (Z : Sized (Σ := nodes g) nat).
  { exists rank. intros a f cs c D I. exact (proj2 (dag_dest_ranked rank g a f cs c H D I)). }
  now apply termination.
Qed.

Theorem quiet g pending g' :
  acyclic g -> output < length g -> (forall k, live g k -> In k pending) ->
  drives_to (g, pending) (g', []) ->
  forall i r p θ, live g' i -> nth_error rules r = Some p ->
    matches (Σ := nodes g') [] p θ i ->
    exists θ', θ' ⊆ θ /\ matches (Σ := nodes g') [] p θ' i /\ act g' i r θ' = None.
Proof.
  intros A O All D i r p θ L N M.
  destruct (drives_to_invariant _ _ D) as (A' & _ & H); [split; [| split]; auto |].
  destruct (rules_checked p (nth_error_In _ _ N)) as [W Gd].
  destruct (checked_answers g' p i A' Gd) as [o R].
  destruct (answers_complete (Σ := nodes g') p i o θ W R M) as (σ & I & X).
  exists (theta σ). split; [exact X |]. split.
  - eapply answers_sound; [exact R | exact I | apply extends_refl].
  - destruct (H i L) as [[] | S]. apply S. exists p, o. auto.
Qed.
End Driver.
