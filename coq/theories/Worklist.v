(** * The incremental driver is complete

    A driver that rewrites a graph in place keeps a list of pending nodes.  It takes one of them; if no
    rule matches there, or all that match decline, it drops the node.  Otherwise it replaces the match,
    and puts back the nodes that the replacement touched (the new ones, and the redirected users) with
    all that is above them: what is below any other node is as it was.  So when nothing is pending,
    there is nothing left to rewrite.

    Rules have one root.  Terms are nodes, compared by identity, as in [Dag.v]; nothing is assumed about
    sharing, and patterns may be recursive, or read attributes of whatever is below a node. *)

From Coq Require Import List Bool PeanoNat Lia.
Import ListNotations.
From PyPM Require Import Names Values Terms Guards Patterns Declarative Stores Machine WellFormed
  Guarded Enumeration Termination Simulation Dag Templates Rewriting InPlace RuleSet.

(** ** What is below a node *)

Definition child (g : dag) (k c : nat) : Prop := In c (snd (dag_dest g k)).

(** [below g k c]: the node [c] is [k], or a child, or a child of a child, ... *)
Inductive below (g : dag) : nat -> nat -> Prop :=
| B_here k : below g k k
| B_child k c d : child g k c -> below g c d -> below g k d.

Lemma below_trans g a b c : below g a b -> below g b c -> below g a c.
Proof. induction 1; eauto using below. Qed.

Lemma child_ranked rank g k c : ranked rank g -> child g k c -> c < length g /\ rank c < rank k.
Proof.
  unfold child. intros H I. destruct (dag_dest g k) as [f cs] eqn:D. eapply dag_dest_ranked; eauto.
Qed.

Lemma below_ranked rank g k c :
  ranked rank g -> below g k c -> k < length g -> c < length g /\ rank c <= rank k.
Proof.
  intros H. induction 1 as [k | k c d K _ IH]; intros L; auto.
  destruct (child_ranked _ _ _ _ H K) as [Lc Rc]. destruct (IH Lc). lia.
Qed.

(** *** Matching at a node depends on what is below it *)

(** The node [a] of [g] is the node [b] of [h], and all that is below it is the same. *)
Definition same_below (g h : dag) (a b : nat) : Prop :=
  a = b /\ forall c, below g a c -> dag_dest g c = dag_dest h c.

(** Two graphs give a node the same attributes where all that is below it is the same. *)
Definition local_meaning {Δ : Domain} (dag_meaning : dag -> interpretation nat) : Prop :=
  forall g h, interpretations_agree (same_below g h) (dag_meaning g) (dag_meaning h).

Lemma same_below_dest g h a b :
  same_below g h a b -> fst (dag_dest g a) = fst (dag_dest h b) /\
    Forall2 (same_below g h) (snd (dag_dest g a)) (snd (dag_dest h b)).
Proof.
  intros [<- H]. rewrite <- (H a (B_here g a)). split; auto.
  assert (K : forall c, In c (snd (dag_dest g a)) -> same_below g h c c).
  { intros c I. split; auto. intros d B. apply H. eapply B_child; eauto. }
  induction (snd (dag_dest g a)); constructor; auto using in_eq, in_cons.
Qed.

Lemma same_value {Δ : Domain} g h (v w : value nat) : value_rel (same_below g h) v w -> v = w.
Proof.
  revert w. induction v as [t | f | c | vs IH] using value_ind'; intros w H; inversion H; subst; auto.
  - now match goal with R : same_below _ _ _ _ |- _ => destruct R as [-> _] end.
  - f_equal. clear H. match goal with F : Forall2 _ _ _ |- _ => induction F; auto end.
    inversion IH; subst. f_equal; auto.
Qed.

Lemma same_store {Δ : Domain} g h (σ σ' : store nat) :
  store_rel (r := same_below g h) σ σ' -> σ = σ'.
Proof.
  destruct σ as [n cs], σ' as [n' cs']. intros [E F]. simpl in *. subst. f_equal.
  induction F as [| [l v] [l' w] ? ? [E V] _ IH]; auto. simpl in *. subst. f_equal; auto.
  f_equal. eapply same_value; eauto.
Qed.

Section Driver.
Context {Δ : Domain}.
Variable dag_meaning : dag -> interpretation nat.
Hypothesis meaning_local : local_meaning dag_meaning.

Notation nodes := (nodes_of dag_meaning).

#[local] Instance same_below_simulation g h : Simulation (nodes g) (nodes h) (same_below g h).
Proof.
  split.
  - exact (same_below_dest g h).
  - intros a b a' b' [<- _] [<- _]. reflexivity.
  - apply meaning_local.
Qed.

Lemma same_answers g h p k o :
  (forall c, below g k c -> dag_dest g c = dag_dest h c) ->
  answers (Σ := nodes g) (init p k) o -> answers (Σ := nodes h) (init p k) o.
Proof.
  intros S H. destruct (init_rel (Sim := same_below_simulation g h) p k k o (conj eq_refl S) H)
    as (o' & H' & F).
  replace o with o'; auto. clear H H'. induction F; auto. f_equal; auto.
  symmetry. eapply same_store; eauto.
Qed.

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
  apply emitted_usable in E as (X & New & Root).
  split; auto. exists (allowed g i). auto.
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
    act g i r (theta σ) = Some (g', j) -> G = redirect_users g g' i j ->
    incl pending pending' -> put_back g G i pending' ->
    drives (g, pending) (G, pending').

Inductive drives_to : dag * list nat -> dag * list nat -> Prop :=
| D_refl s : drives_to s s
| D_step s s' s'' : drives s s' -> drives_to s' s'' -> drives_to s s''.

(** ** The graph after a replacement *)

Section Replaced.
Variables (g : dag) (i r : nat) (θ : env nat) (g' : dag) (j : nat).
Hypothesis acted : act g i r θ = Some (g', j).

Let G := redirect_users g g' i j.

Lemma extended : extension g g'.
Proof. eapply act_below, acted. Qed.

Lemma longer : length g <= length G.
Proof. unfold G. rewrite (G_length g i g' j extended). apply extension_length, extended. Qed.

(** A node that is not touched has the operator and the children that it had. *)
Lemma untouched_dest c : ~ touched g G i c -> dag_dest G c = dag_dest g c.
Proof.
  intros N. pose proof longer. destruct (Nat.lt_ge_cases c (length g)) as [L | L].
  - destruct (dag_dest g c) as [f cs] eqn:D. unfold G. rewrite (old_dest g i g' j extended c f cs L D).
    f_equal. rewrite <- (map_id cs) at 2. apply map_ext_in. intros d I.
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
  eexists. apply (replacement_acyclic g rank i al H); eauto.
  intros k Ak. apply (below_ranked rank g i k H); auto.
Qed.

(** What is live is new, or was live before. *)
Lemma still_live k : live G k -> live g k \/ length g <= k < length G.
Proof.
  destruct (act_below _ _ _ _ _ _ acted) as (X & al & A & New & Root).
  assert (Use : forall m c, m <= length g' -> usable al (length g) m c ->
                live g c \/ length g <= c < length G).
  { unfold G. rewrite (G_length g i g' j X). intros m c Lm [U | U]; [left | right; lia].
    exact (below_trans _ _ _ _ live_i (A c U)). }
  assert (Edge : forall a c, child G a c -> live g a \/ length g <= a < length G ->
                 live g c \/ length g <= c < length G).
  { intros a c K [La | La].
    - destruct acyclic_g as [rank H]. destruct (below_ranked _ _ _ _ H La output_g) as [L _].
      unfold child, G in K. destruct (dag_dest g a) as [f cs] eqn:D.
      rewrite (old_dest g i g' j X a f cs L D) in K. apply in_map_iff in K as (d & E & I).
      destruct (Nat.eqb d i); subst c; [exact (Use _ _ (Nat.le_refl _) Root) |]. left.
      apply (below_trans _ _ _ _ La), (B_child g a d d); [unfold child; now rewrite D | constructor].
    - unfold child, dag_dest, G in K. rewrite (new_node g i g' j X) in K by lia.
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

Lemma local_put_back g i r θ g' j pending (G := redirect_users g g' i j) :
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
  - destruct Inv as (A & O & H). simpl in *. split; [| split]; simpl.
    + eapply replaced_acyclic; eauto.
    + eapply Nat.lt_le_trans; [exact O | eapply longer; eauto].
    + intros k Lk. destruct (in_dec Nat.eq_dec k pending') as [I | I]; auto. right.
      assert (Same : forall c, below (redirect_users g g' i j) k c ->
        dag_dest (redirect_users g g' i j) c = dag_dest g c).
      { intros c Bc. eapply untouched_dest; eauto. }
      intros r' σ' (p & o & N & R' & I'). apply (same_answers _ _ _ _ _ Same) in R'.
      assert (X : answer g k r' σ') by (exists p, o; auto).
      destruct (act (redirect_users g g' i j) k r' (theta σ')) eqn:Ea; auto. elim I.
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
(** ** A driver that computes

    It takes the first pending node, and what it puts back is given by [back]. *)

Definition members (g : dag) (test : nat -> bool) : list nat := filter test (seq 0 (length g)).

(** The nodes below the output, and the nodes above some. *)
Definition with_children (g : dag) (ks : list nat) : list nat :=
  nodup Nat.eq_dec (ks ++ flat_map (fun k => snd (dag_dest g k)) ks).

Definition live_nodes (g : dag) : list nat := Nat.iter (length g) (with_children g) [output].

Definition uses (g : dag) (ks : list nat) (k : nat) : bool :=
  existsb (fun c => mem c ks) (snd (dag_dest g k)).

Definition above (g : dag) (ts : list nat) : list nat :=
  let ks := Nat.iter (length g) (fun ks => members g (fun k => mem k ks || uses g ks k)) ts in
  if subset ts ks && subset (members g (uses g ks)) ks then ks else members g (fun _ => true).

Lemma members_spec g test k : In k (members g test) <-> k < length g /\ test k = true.
Proof. unfold members. rewrite filter_In, in_seq. split; intros [L E]; split; auto; lia. Qed.

Lemma child_exists g k c : child g k c -> k < length g.
Proof.
  unfold child, dag_dest. intros I. apply nth_error_Some. destruct (nth_error g k); [discriminate |].
  destruct I.
Qed.

Lemma live_nodes_live g k : In k (live_nodes g) -> live g k.
Proof.
  unfold live_nodes. revert k. induction (length g) as [| n IH]; simpl; intros k I.
  - destruct I as [<- | []]. constructor.
  - apply nodup_In, in_app_iff in I as [I | I]; auto. apply in_flat_map in I as (a & Ia & I).
    apply (below_trans g output a k (IH a Ia)), (B_child g a k k I), B_here.
Qed.

Lemma closed_live g ks k :
  In output ks -> subset (flat_map (fun k => snd (dag_dest g k)) ks) ks = true -> live g k -> In k ks.
Proof.
  intros O C L. apply subset_spec in C. revert O. unfold live in L. induction L; intros O; auto.
  apply IHL, C, in_flat_map. eauto.
Qed.

Lemma above_spec g ts k t : In t ts -> t < length g -> below g k t -> In k (above g ts).
Proof.
  intros I L B. unfold above. destruct (_ && _) eqn:C.
  - apply andb_prop in C as [C1 C2]. apply subset_spec in C1, C2. apply C1 in I.
    clear C1 L. induction B as [| k c t K _ IH]; auto. apply C2, members_spec.
    split; [eapply child_exists; eauto |]. apply existsb_exists. exists c.
    split; [exact K |]. apply mem_spec. auto.
  - apply members_spec. split; auto. destruct B as [| k c t K B]; auto. eapply child_exists; eauto.
Qed.

Definition touched_nodes (g G : dag) (i : nat) : list nat :=
  members G (fun k => Nat.leb (length g) k || mem i (snd (dag_dest g k))).

(** One visit: the graph, and what is put back. *)
Definition visit (fuel : nat) (back : dag -> list nat -> list nat) (g : dag) (i : nat)
    : option (dag * list nat) :=
  let L := live_nodes g in
  if mem i L then
    match sequence (map (fun p => run (Σ := nodes g) fuel (init p i)) rules) with
    | Some os =>
        match choice g i os with
        | Some (r, σ) =>
            match act g i r (theta σ) with
            | Some (g', j) =>
                let G := redirect_users g g' i j in Some (G, i :: back G (touched_nodes g G i))
            | None => None
            end
        | None => Some (g, [])
        end
    | None => None
    end
  else if mem output L && subset (flat_map (fun k => snd (dag_dest g k)) L) L then Some (g, [])
  else None.

Fixpoint drive (fuel : nat) (back : dag -> list nat -> list nat) (g : dag) (pending : list nat)
    : option dag :=
  match fuel, pending with
  | _, [] => Some g
  | 0, _ => None
  | S n, i :: rest =>
      option_bind (visit fuel back g i) (fun '(G, more) => drive n back G (rest ++ more))
  end.

Lemma sequence_runs g i fuel : forall ps os,
  sequence (map (fun p => run (Σ := nodes g) fuel (init p i)) ps) = Some os ->
  Forall2 (fun p o => answers (Σ := nodes g) (init p i) o) ps os.
Proof.
  induction ps as [| p ps IH]; intros os E; simpl in E; [injection E as <-; constructor |].
  destruct (run fuel (init p i)) as [o |] eqn:R; [| discriminate].
  destruct (sequence _) as [os' |] eqn:E'; [| discriminate]. injection E as <-.
  constructor; auto. exact (run_sound (Σ := nodes g) fuel _ _ R).
Qed.

Lemma visit_drives fuel g i rest G more :
  local_body act -> visit fuel above g i = Some (G, more) ->
  drives (g, i :: rest) (G, rest ++ more).
Proof.
  intros Loc E. unfold visit in E. destruct (mem i (live_nodes g)) eqn:L.
  - destruct (sequence _) as [os |] eqn:R; [| discriminate]. apply sequence_runs in R.
    apply mem_spec, live_nodes_live in L.
    destruct (choice g i os) as [[r σ] |] eqn:C.
    + destruct (act g i r (theta σ)) as [[g' j] |] eqn:A; [| discriminate]. injection E as <- <-.
      eapply D_replace; eauto using in_eq.
      * intros k [<- | I]; apply in_app_iff; [right; now left | now left].
      * eapply local_put_back; eauto. intros k t Tt B. apply in_app_iff. right. right.
        assert (t < length (redirect_users g g' i j)) as Lt.
        { destruct Tt as [Tt | Tt]; [apply Tt |]. eapply Nat.lt_le_trans; [eapply child_exists, Tt |].
          eapply longer; eauto. }
        eapply above_spec; eauto. apply members_spec. split; auto.
        apply orb_true_iff. destruct Tt as [[Tt _] | Tt]; [left; now apply Nat.leb_le |].
        right. apply mem_spec. exact Tt.
    + injection E as <- <-. eapply D_drop; eauto using in_eq. rewrite app_nil_r. apply incl_refl.
  - destruct (_ && _) eqn:C; [| discriminate]. injection E as <- <-. apply andb_prop in C as [O C].
    apply (D_dead g _ _ i); auto using in_eq; [| rewrite app_nil_r; apply incl_refl].
    intros Li. apply mem_spec in O. apply (closed_live g _ i O C), mem_spec in Li. congruence.
Qed.

Theorem drive_drives fuel : forall g pending G,
  local_body act -> drive fuel above g pending = Some G -> drives_to (g, pending) (G, []).
Proof.
  induction fuel as [| n IH]; intros g [| i rest] G Loc E; try discriminate;
    try (injection E as <-; constructor).
  cbn [drive] in E. destruct (visit (S n) above g i) as [[G1 more] |] eqn:V; [| discriminate].
  eapply D_step; [eapply visit_drives; eauto | apply IH; auto].
Qed.
End Driver.
