(** * Two windows: what stands in one place of a region computes what the region did

    The old and the new window from one state.  Effects are the same; names of both windows have the
    same values; and each lies where it did, or has the memory of a root that has moved. *)

From Coq Require Import List Bool PeanoNat.
Import ListNotations.
From PyPM Require Import Names.
From PyPM.legality Require Import Execution Legal Equation Windows Origins.

Lemma names_filter f g n : In n (names (filter f g)) -> In n (names g).
Proof.
  intros I. apply in_map_iff in I as (x & <- & I). apply filter_In in I. apply in_map, I.
Qed.

(** A pass over a part of a scoped graph gives each name what its node says of the final values. *)
Lemma pass_satisfies {A} (F : (name -> A) -> node -> A) f g :
  (forall ρ ρ' x, (forall a, In a (reads (snd x)) -> ρ a = ρ' a) -> F ρ x = F ρ' x) ->
  forall D ρ, scoped D g = true -> forall n d, In (n, d) (filter f g) ->
  let ρ' := fold_left (fun ρ x => assign ρ (fst x) (F ρ x)) (filter f g) ρ in
  F ρ' (n, d) = ρ' n.
Proof.
  intros Local. induction g as [| [k e] g IH]; intros D ρ S n d I; [destruct I |].
  apply scoped_cons in S as (N & K & S). simpl in I |- *. destruct (f (k, e)); [| eapply IH; eauto].
  destruct I as [[= <- <-] | I]; [| eapply IH; eauto].
  assert (Later : forall a, In a (k :: D) -> ~ In a (names (filter f g))).
  { intros a J C. eapply scoped_new; eauto using names_filter. }
  simpl. rewrite (pass_other F) by (apply Later; now left). rewrite assign_same.
  apply Local. intros a J. rewrite (pass_other F) by (apply Later; right; apply K, J).
  apply assign_other. intros ->. apply N, K, J.
Qed.

(** The place of an element in a list without repetitions is unique. *)
Lemma unique_split {A} (x : A) l1 l2 : forall k1 k2,
  l1 ++ x :: l2 = k1 ++ x :: k2 -> ~ In x l1 -> ~ In x l2 -> l1 = k1.
Proof.
  induction l1 as [| y l1 IH]; intros [| z k1] k2 E N M; simpl in *; try reflexivity.
  - injection E as <- ->. destruct M. apply in_or_app. right. now left.
  - injection E as -> _. tauto.
  - injection E as <- E. f_equal. eapply IH; eauto.
Qed.

Lemma names_app g g' : names (g ++ g') = names g ++ names g'.
Proof. apply map_app. Qed.

Lemma in_node n d (g : graph) : In (n, d) g -> In n (names g).
Proof. apply (in_map fst g (n, d)). Qed.

(** A scoped graph, split at a node. *)
Lemma scoped_split D p n d q :
  scoped D (p ++ (n, d) :: q) = true ->
  ~ In n D /\ ~ In n (names p) /\ ~ In n (names q) /\
  (forall a, In a (reads d) -> In a D \/ In a (names p)).
Proof.
  rewrite scoped_app, andb_true_iff, scoped_cons. intros (S1 & N & K & S2).
  rewrite in_app_iff, <- in_rev in N. repeat split; try tauto.
  - intros I. apply (scoped_new _ _ _ S2 I). now left.
  - intros a I. apply K in I. rewrite in_app_iff, <- in_rev in I. tauto.
Qed.

Lemma scoped_unique D g n d d' : scoped D g = true -> In (n, d) g -> In (n, d') g -> d = d'.
Proof.
  intros S I J. apply in_split in I as (p & q & ->).
  apply scoped_split in S as (_ & Np & Nq & _). apply in_app_iff in J as [J | [J | J]].
  - destruct (Np (in_node _ _ _ J)).
  - congruence.
  - destruct (Nq (in_node _ _ _ J)).
Qed.

Lemma scoped_reads D g n d : scoped D g = true -> In (n, d) g ->
  forall a, In a (reads d) -> In a D \/ In a (names g).
Proof.
  intros S I a J. apply in_split in I as (p & q & ->). apply scoped_split in S as (_ & _ & _ & K).
  rewrite names_app, in_app_iff. destruct (K a J); auto.
Qed.

Lemma stays_spec x g : stays x g = true <-> In x g.
Proof. unfold stays. destruct (in_dec node_eq_dec x g); split; congruence. Qed.

Section Bases.
Context {τ : Torch}.

Lemma path_nil t s : t = Tensor s [] -> path t = [].
Proof. now intros ->. Qed.

(** A chain of certain views ends at its base, and its parts lead there. *)
Lemma base_spec σ D g σ2 :
  scoped D g = true -> window_spec σ D g σ2 ->
  forall p q, g = p ++ q -> forall n, In n D \/ In n (names p) ->
  let b := bases p n in
  (In b D \/ In b (names p)) /\
  home (env σ2 n) = home (env σ2 b) /\
  path (env σ2 n) = path (env σ2 b) ++ parts (now_mode σ) (look σ2) p n.
Proof.
  intros S W p. induction p as [| [k d] p IH] using rev_ind; intros q E n I.
  { simpl. rewrite app_nil_r. destruct I as [I | []]. auto. }
  rewrite <- app_assoc in E. specialize (IH _ E). pose proof S as S'. rewrite E in S'.
  apply scoped_split in S' as (N & Np & _ & K).
  unfold bases, parts. rewrite !fold_left_app. fold (bases p).
  fold (parts (now_mode σ) (look σ2) p). simpl. rewrite names_app in *. simpl in I.
  destruct (Nat.eq_dec k n) as [<- | F].
  - rewrite !assign_same.
    pose proof (window_tensor _ _ _ _ W _ _ _ E) as T. simpl in T.
    unfold base_of, part_of. destruct (sure_view (k, d)) as [a |] eqn:V.
    + assert (R : In a (reads d)).
      { unfold sure_view in V. simpl in V. destruct d as [f args | m].
        - destruct (shares f); try discriminate. destruct (effectful _); [discriminate |].
          eapply nth_error_In; eauto.
        - injection V as <-. now left. }
      destruct (IH a (K a R)) as (B & H & P). split; [rewrite in_app_iff; tauto |].
      unfold placed_at in T. simpl in T. unfold sure_view in V. simpl in V.
      destruct d as [f args | m].
      * destruct (shares f) as [| i | is] eqn:Sh; try discriminate.
        destruct (effectful (k, Call f args)) eqn:Ef; [discriminate |].
        unfold seen_at in T. rewrite (sight_pure f _ _ _ k args Ef) in T.
        unfold viewed in T. rewrite Sh, V in T. rewrite T. simpl.
        split; [exact H |]. rewrite P, app_assoc. reflexivity.
      * injection V as <-. rewrite T. auto.
    + simpl. rewrite in_app_iff. simpl. rewrite app_nil_r. auto.
  - rewrite !assign_other by exact F. rewrite in_app_iff in I. simpl in I.
    destruct (IH n) as (B & H & P); [tauto |]. rewrite in_app_iff. tauto.
Qed.

Lemma parts_agree m ρ ρ' g : forall D P,
  scoped D g = true -> (forall n, In n D \/ In n (names g) -> ρ n = ρ' n) ->
  forall n,
  fold_left (fun P x => assign P (fst x) (part_of m ρ P x)) g P n =
  fold_left (fun P x => assign P (fst x) (part_of m ρ' P x)) g P n.
Proof.
  induction g as [| [k d] g IH]; intros D P S A n; [reflexivity |].
  pose proof S as S'. apply scoped_cons in S as (N & K & S). simpl.
  assert (E : part_of m ρ P (k, d) = part_of m ρ' P (k, d)).
  { unfold part_of. destruct (sure_view _); [| reflexivity]. destruct d as [f args | a]; [| reflexivity].
    simpl. rewrite (map_agree ρ ρ' args); [reflexivity |]. intros a I. apply A. left. apply K, I. }
  rewrite E. apply IH with (k :: D); [exact S |]. intros a I. apply A. simpl in *. tauto.
Qed.
End Bases.

Section Two.
Context {τ : Torch}.
Variables (w : rewrite) (σ : state) (D : list name).
Hypothesis scoped_old : scoped D (old w) = true.
Hypothesis scoped_new : scoped D (new w) = true.
Hypothesis quiet_old : forallb quiet (old w) = true.
Hypothesis quiet_new : forallb quiet (new w) = true.
Hypothesis effects_same : same_effects w = true.
Hypothesis bound : bounded σ D.

Let σ1 := run (old w) σ.
Let σ2 := run (new w) σ.
Let m := now_mode σ.
Let ρ := look σ1.
Let ρ' := evaluate w m ρ.
Hypothesis holds : equation_at w m ρ.

Let W1 : window_spec σ D (old w) σ1.
Proof. now apply window. Qed.

Let W2 : window_spec σ D (new w) σ2.
Proof. now apply window. Qed.

Definition of_old (n : name) : Prop := In n D \/ In n (names (old w)).

(** The replacement, evaluated on the old values, changes none of them. *)
Lemma evaluated_old n : of_old n -> ρ' n = ρ n.
Proof.
  intros I. destruct (in_dec Nat.eq_dec n (names (replacement w))) as [R | R].
  - destruct I as [I | I].
    + destruct (Origins.scoped_new _ _ _ scoped_new (names_filter _ _ _ R) I).
    + apply (same_values _ _ _ holds). unfold roots. apply filter_In. rewrite mem_spec. auto.
  - now apply (pass_other (anew w m ρ)).
Qed.

Lemma old_reads n d : In (n, d) (old w) -> forall a, In a (reads d) -> ρ' a = ρ a.
Proof. intros I a J. apply evaluated_old. eapply scoped_reads; eauto. Qed.

Lemma flows_old p q : old w = p ++ q -> flows m ρ' p (rest σ) = flows m ρ p (rest σ).
Proof.
  intros E. apply flows_agree. intros [k d] n I. apply (old_reads k d). rewrite E. auto using in_or_app.
Qed.

(** *** Effects, in pairs *)

Lemma paired_lengths : length (effects (old w)) = length (effects (new w)).
Proof. apply andb_true_iff in effects_same as [L _]. now apply Nat.eqb_eq. Qed.

Lemma pair_nodes x y : In (x, y) (paired w) ->
  In x (old w) /\ In y (new w) /\ effectful x = true /\ effectful y = true.
Proof.
  intros I. pose proof (in_combine_l _ _ _ _ I) as J. pose proof (in_combine_r _ _ _ _ I) as J'.
  apply filter_In in J, J'. tauto.
Qed.

(** Both call the same operator on the same values; they are one node, or both in new memory. *)
Lemma pair_spec x y : In (x, y) (paired w) ->
  (x = y \/ is_fresh (snd x) = true /\ ~ In y (old w)) /\
  exists f args args', snd x = Call f args /\ snd y = Call f args' /\ map ρ args = map ρ' args'.
Proof.
  intros I. pose proof (pair_nodes _ _ I) as (Jx & Jy & Ex & Ey).
  apply andb_true_iff in effects_same as [_ A]. rewrite forallb_forall in A.
  specialize (A _ I). unfold same_effect in A. simpl in A.
  destruct (node_eq_dec x y) as [<- | N].
  - split; [now left |]. destruct x as [n [f args | a]]; [| discriminate].
    exists f, args, args. repeat split. apply map_agree. intros a J. symmetry.
    eapply old_reads; eauto.
  - simpl in A. pose proof (same_operands _ _ _ holds _ _ I N) as O.
    destruct x as [n [f args |]], y as [n' [f' args' |]]; try discriminate. simpl in *.
    rewrite !andb_true_iff, !negb_true_iff in A. destruct A as [[[F Fr] _] St].
    destruct (operator_eq_dec f f') as [<- |]; [| discriminate]. split.
    + right. split; [exact Fr |]. now rewrite <- stays_spec, St.
    + exists f, args, args'. auto.
Qed.

Lemma flows_pairs l : incl l (paired w) -> forall gh,
  flows m ρ (map fst l) gh = flows m ρ' (map snd l) gh.
Proof.
  induction l as [| [x y] l IH]; intros I gh; [reflexivity |]. simpl.
  destruct (pair_spec x y) as (_ & f & args & args' & E & E' & V); [apply I; now left |].
  replace (flow m ρ' gh y) with (flow m ρ gh x).
  - apply IH. intros z J. apply I. now right.
  - unfold flow. now rewrite E, E', V.
Qed.

Lemma paired_parts : map fst (paired w) = effects (old w) /\ map snd (paired w) = effects (new w).
Proof.
  unfold paired. pose proof paired_lengths as L. revert L.
  generalize (effects (new w)). induction (effects (old w)) as [| a l IH]; intros [| b l'] L;
    try discriminate; auto.
  injection L as L. destruct (IH l' L) as [F G]. simpl. now rewrite F, G.
Qed.

(** Where effects stand in pairs, they see the same of the stream and of the world. *)
Lemma pair_flows x y p q p' q' :
  In (x, y) (paired w) -> new w = p ++ y :: q -> old w = p' ++ x :: q' ->
  flows m ρ' p (rest σ) = flows m ρ p' (rest σ).
Proof.
  intros I E E'. pose proof (pair_nodes _ _ I) as (_ & _ & Ex & Ey).
  apply in_split in I as (c1 & c2 & C).
  destruct paired_parts as [F F']. rewrite C, map_app in F, F'. symmetry in F, F'.
  unfold effects in F, F'. rewrite E', filter_app in F. rewrite E, filter_app in F'.
  simpl in F, F'. rewrite Ex in F. rewrite Ey in F'.
  pose proof scoped_new as S. pose proof scoped_old as S'. rewrite E in S. rewrite E' in S'.
  destruct x as [n d], y as [k e].
  assert (Out : forall n d g, ~ In n (names g) -> ~ In (n, d) (filter effectful g)).
  { intros l b g M J. apply M. apply filter_In in J as [J _]. eapply in_node; eauto. }
  apply scoped_split in S as (_ & N1 & N2 & _). apply scoped_split in S' as (_ & N1' & N2' & _).
  rewrite flows_effects, (flows_effects m ρ p'). unfold effects.
  rewrite (unique_split _ _ _ _ _ F (Out _ _ _ N1') (Out _ _ _ N2')).
  rewrite (unique_split _ _ _ _ _ F' (Out _ _ _ N1) (Out _ _ _ N2)).
  symmetry. apply flows_pairs. intros z J. rewrite C. apply in_or_app. now left.
Qed.

(** Every effect of the new window is in a pair. *)
Lemma paired_new y : In y (new w) -> effectful y = true -> exists x, In (x, y) (paired w).
Proof.
  intros I E. assert (J : In y (effects (new w))) by (apply filter_In; auto).
  unfold paired. pose proof paired_lengths as L.
  generalize dependent (effects (new w)). generalize (effects (old w)).
  intros l. induction l as [| a l IH]; intros [| b l'] J L; try discriminate; [destruct J |].
  injection L as L. destruct J as [<- | J]; [exists a; now left |].
  destruct (IH l' J L) as [x X]. exists x. now right.
Qed.

(** A node that stays sees the same of the stream and of the world, though it may stand elsewhere. *)
Lemma same_flows p q p' q' n d :
  new w = p ++ (n, d) :: q -> old w = p' ++ (n, d) :: q' -> effectful (n, d) = true ->
  flows m ρ' p (rest σ) = flows m ρ p' (rest σ).
Proof.
  intros E E' F. destruct (paired_new (n, d)) as [x I]; [rewrite E; auto using in_or_app, in_eq | exact F |].
  destruct (pair_spec _ _ I) as [[-> | [_ N]] _].
  - eapply pair_flows; eauto.
  - destruct N. rewrite E'. auto using in_or_app, in_eq.
Qed.

Lemma anew_local ρ1 ρ2 x :
  (forall a, In a (reads (snd x)) -> ρ1 a = ρ2 a) -> anew w m ρ ρ1 x = anew w m ρ ρ2 x.
Proof.
  intros A. unfold anew. destruct (effectful x); [reflexivity |]. now apply meaning_agree.
Qed.

(** The value of a node of the replacement. *)
Lemma replaced_value p k d q :
  new w = p ++ (k, d) :: q -> ~ In (k, d) (old w) ->
  meaning (seen_at m (flows m ρ' p (rest σ))) ρ' d = ρ' k.
Proof.
  intros E O. assert (I : In (k, d) (new w)) by (rewrite E; auto using in_or_app, in_eq).
  assert (R : In (k, d) (replacement w)).
  { apply filter_In. rewrite negb_true_iff, <- not_true_iff_false, stays_spec. auto. }
  rewrite <- (pass_satisfies (anew w m ρ) _ (new w) anew_local D ρ scoped_new k d R : _ = ρ' k).
  unfold anew. simpl fst. simpl snd. destruct (effectful (k, d)) eqn:F;
    [| now rewrite (meaning_pure m _ _ k)].
  unfold partner.
  destruct (find (fun p => Nat.eqb (fst (snd p)) k) (paired w)) as [[x y] |] eqn:Fd.
  - apply find_some in Fd as [J K]. apply Nat.eqb_eq in K. simpl in K |- *.
    pose proof (pair_nodes _ _ J) as (Jx & Jy & _ & _). destruct y as [k' d']. simpl in K. subst k'.
    rewrite (scoped_unique _ _ _ _ _ scoped_new Jy I) in *.
    destruct (pair_spec _ _ J) as ([-> | [Fr _]] & f & args & args' & Ex & Ey & V); [tauto |].
    simpl in Ey. subst d. destruct x as [n dx]. simpl in Ex, Fr |- *. subst dx. simpl in Fr.
    apply in_split in Jx as (p' & q' & E'). rewrite (pair_flows _ _ _ _ _ _ J E E').
    pose proof (window_value _ _ _ _ W1 _ _ _ _ E') as Wv. fold m ρ in Wv.
    unfold meaning, viewed in Wv. unfold viewed. destruct (shares f); try discriminate.
    rewrite <- V. symmetry. exact Wv.
  - destruct (paired_new _ I F) as [x J]. apply (find_none _ _ Fd) in J. simpl in J.
    now rewrite Nat.eqb_refl in J.
Qed.

(** All values of the new window are those of the evaluation. *)
Lemma new_values p : forall q, new w = p ++ q ->
  forall n, In n D \/ In n (names p) -> look σ2 n = ρ' n.
Proof.
  induction p as [| [k d] p IH] using rev_ind; intros q E n I.
  - destruct I as [I | []]. rewrite (window_look _ _ _ _ W2 n I), evaluated_old by (now left).
    symmetry. apply (window_look _ _ _ _ W1 n I).
  - rewrite <- app_assoc in E. specialize (IH _ E). rewrite names_app, in_app_iff in I.
    destruct (Nat.eq_dec k n) as [<- | F]; [| apply IH; simpl in I; tauto].
    pose proof scoped_new as S. rewrite E in S. apply scoped_split in S as (Nk & Np & _ & K).
    rewrite (window_value _ _ _ _ W2 _ _ _ _ E). fold m.
    rewrite (meaning_agree _ (look σ2) ρ') by (intros a J; apply IH, K, J).
    rewrite (flows_agree m (look σ2) ρ').
    2: { intros [l e] a J R. pose proof scoped_new as S. rewrite E in S.
         rewrite scoped_app in S. apply andb_true_iff in S as [S _].
         apply IH. eapply scoped_reads; eauto. }
    destruct (in_dec node_eq_dec (k, d) (old w)) as [O | O].
    + rewrite evaluated_old by (right; eapply in_node; eauto).
      rewrite (meaning_agree _ ρ' ρ) by (intros a J; eapply old_reads; eauto).
      apply in_split in O as (p' & q' & E'). unfold ρ at 2.
      rewrite (window_value _ _ _ _ W1 _ _ _ _ E'). fold ρ m.
      destruct (effectful (k, d)) eqn:F.
      * now rewrite (same_flows _ _ _ _ _ _ E E' F).
      * now rewrite !(meaning_pure m _ _ k) by exact F.
    + now apply replaced_value with q.
Qed.

Lemma new_value n : In n D \/ In n (names (new w)) -> look σ2 n = ρ' n.
Proof. intros I. apply (new_values (new w) []); [now rewrite app_nil_r | exact I]. Qed.

Lemma same_rest : rest σ2 = rest σ1.
Proof.
  rewrite (window_rest _ _ _ _ W2), (window_rest _ _ _ _ W1). fold m ρ.
  rewrite (flows_agree m (look σ2) ρ').
  - rewrite flows_effects, (flows_effects m ρ (old w)). destruct paired_parts as [<- <-].
    symmetry. apply flows_pairs. apply incl_refl.
  - intros [l e] a J R. apply new_value. eapply scoped_reads; eauto.
Qed.

(** ** Memory *)

(** How a name lies in both states: in one and the same storage, or in that of a moved root, of which
    it is the same part. *)
Definition linked (t t' : name -> tensor) (s s' : state) (o : origin) (n : name) : Prop :=
  match o with
  | Root r =>
      In r (moved w) /\ home (env s n) = home (t r) /\ home (env s' n) = home (t' r) /\
      exists p, path (env s n) = path (t r) ++ p /\ path (env s' n) = path (t' r) ++ p
  | o =>
      stands_for o (home (env s n)) /\ home (env s' n) = home (env s n) /\
      same_part (path (env s n)) (path (env s' n)) /\
      heap s (home (env s n)) = heap s' (home (env s n))
  end.

Notation here := (linked (env σ1) (env σ2) σ1 σ2).

Hypothesis located_entry : forall n, In n D -> located (entry w) σ n.

Lemma same_part_refl p : same_part p p.
Proof. split; reflexivity. Qed.

Lemma put_at_app p q v u : put_at (p ++ q) v u = put_at p v (put_at q (look_at p v) u).
Proof.
  revert v. induction p as [| l p IH]; intros v; [reflexivity |]. simpl. now rewrite IH.
Qed.

Lemma same_part_app p p' q q' :
  same_part p p' -> same_part q q' -> same_part (p ++ q) (p' ++ q').
Proof.
  intros [G P] [G' P']. split.
  - intros v. now rewrite !look_at_app, G, G'.
  - intros v u. now rewrite !put_at_app, P, P', G.
Qed.

(** New memory, of one name, with one value. *)
Lemma linked_fresh n :
  of_old n -> In n D \/ In n (names (new w)) ->
  env σ1 n = Tensor (Made n) [] -> env σ2 n = Tensor (Made n) [] -> here (OMade n) n.
Proof.
  intros I J E1 E2. simpl. rewrite E1, E2. simpl. repeat split.
  assert (H1 : look σ1 n = heap σ1 (Made n)) by (unfold look; now rewrite E1).
  assert (H2 : look σ2 n = heap σ2 (Made n)) by (unfold look; now rewrite E2).
  rewrite <- H1, <- H2, new_value, evaluated_old; auto.
Qed.

Lemma linked_entry n : In n D -> exists o, In o (entry w n) /\ here o n.
Proof.
  intros I. destruct (located_entry n I) as (o & Io & S). exists o. split; [exact Io |].
  assert (H : forall g s, scoped D g = true -> window_spec σ D g s ->
            heap s (home (env σ n)) = heap σ (home (env σ n))).
  { intros g s Sc Ws. apply (window_heap _ _ _ _ Ws). intros k J E.
    apply (Origins.scoped_new _ _ _ Sc J). eapply bound; eauto. }
  unfold linked. rewrite (window_env _ _ _ _ W1 n I), (window_env _ _ _ _ W2 n I).
  rewrite (H _ _ scoped_old W1), (H _ _ scoped_new W2).
  destruct o; [| | destruct S]; auto using same_part_refl.
Qed.

Definition passed (p : graph) : origins :=
  fold_left (fun O x => assign O (fst x) (placed w O x)) p (entry w).

Lemma passed_snoc p x : passed (p ++ [x]) = assign (passed p) (fst x) (placed w (passed p) x).
Proof. unfold passed. now rewrite fold_left_app. Qed.

Lemma exit_at p x q : new w = p ++ x :: q -> exit w (fst x) = placed w (passed p) x.
Proof.
  intros E. unfold exit. rewrite E, fold_left_app. simpl. fold (passed p). destruct x as [n d].
  pose proof scoped_new as S. rewrite E in S. apply scoped_split in S as (_ & _ & N & _).
  rewrite (pass_other (placed w)) by exact N. apply assign_same.
Qed.

Lemma linked_view n a o :
  home (env σ1 n) = home (env σ1 a) -> home (env σ2 n) = home (env σ2 a) -> is_root o = false ->
  (same_part (path (env σ1 a)) (path (env σ2 a)) ->
   same_part (path (env σ1 n)) (path (env σ2 n))) ->
  here o a -> here o n.
Proof.
  intros H1 H2 R P. unfold linked. rewrite H1, H2. destruct o; [tauto | tauto | discriminate].
Qed.

(** A part of what is linked. *)
Lemma linked_part n a o p :
  env σ1 n = Tensor (home (env σ1 a)) (path (env σ1 a) ++ p) ->
  env σ2 n = Tensor (home (env σ2 a)) (path (env σ2 a) ++ p) -> here o a -> here o n.
Proof.
  intros E1 E2. unfold linked. rewrite E1, E2. simpl. destruct o; intros X.
  - destruct X as (X1 & X2 & X3 & X4). auto using same_part_app, same_part_refl.
  - destruct X as (X1 & X2 & X3 & X4). auto using same_part_app, same_part_refl.
  - destruct X as (X1 & X2 & X3 & q & Q1 & Q2). repeat split; auto.
    exists (q ++ p). now rewrite Q1, Q2, !app_assoc.
Qed.

Lemma whole (t : tensor) : t = Tensor (home t) (path t ++ []).
Proof. destruct t. simpl. now rewrite app_nil_r. Qed.

Lemma fresh_tensor g s n d : window_spec σ D g s -> In (n, d) g -> is_fresh d = true ->
  env s n = Tensor (Made n) [].
Proof.
  intros Ws I F. apply in_split in I as (p & q & E). rewrite (window_tensor _ _ _ _ Ws _ _ _ E : env s n = _).
  destruct d as [f args |]; [| discriminate]. unfold placed_at, viewed. simpl in *.
  now destruct (shares f).
Qed.

Lemma defines_fresh_spec g n :
  defines_fresh g n = true -> exists d, In (n, d) g /\ is_fresh d = true.
Proof.
  unfold defines_fresh. rewrite existsb_exists. intros ([k d] & I & E).
  apply andb_true_iff in E as [E F]. apply Nat.eqb_eq in E. simpl in *. subst. eauto.
Qed.

Lemma bases_at g p n d q : scoped D g = true -> g = p ++ (n, d) :: q ->
  bases g n = bases (p ++ [(n, d)]) n.
Proof.
  intros S E. rewrite E in *. apply scoped_split in S as (_ & _ & N & _).
  replace (p ++ (n, d) :: q) with ((p ++ [(n, d)]) ++ q) by (now rewrite <- app_assoc).
  unfold bases. rewrite (fold_left_app _ (p ++ [(n, d)]) q). now rewrite (pass_other base_of).
Qed.

Lemma new_parts n :
  parts m (look σ2) (new w) n = parts m ρ' (new w) n.
Proof. apply (parts_agree m (look σ2) ρ' (new w) D); [exact scoped_new |]. apply new_value. Qed.

Lemma link p : forall q, new w = p ++ q ->
  forall n, In n D \/ In n (names p) /\ In n (names (old w)) ->
  exists o, In o (passed p n) /\ here o n.
Proof.
  induction p as [| [k d] p IH] using rev_ind; intros q E n I.
  { apply linked_entry. destruct I as [I | [[] _]]. exact I. }
  rewrite <- app_assoc in E. specialize (IH _ E). rewrite names_app, in_app_iff in I.
  pose proof scoped_new as S. rewrite E in S. apply scoped_split in S as (Nk & Np & _ & K).
  rewrite passed_snoc. simpl fst. destruct (Nat.eq_dec k n) as [<- | F].
  2: { rewrite assign_other by exact F. apply IH. simpl in I. tauto. }
  destruct I as [I | [_ Iold]]; [tauto |]. rewrite assign_same.
  assert (Inew : In k (names (new w))) by (rewrite E, names_app, in_app_iff; simpl; auto).
  pose proof (window_tensor _ _ _ _ W2 _ _ _ E) as T2. simpl in T2. fold m in T2.
  unfold placed. simpl fst. destruct (stays (k, d) (old w)) eqn:St.
  - (* it stays *)
    apply stays_spec in St. apply in_split in St as (p' & q' & E').
    assert (St : In (k, d) (old w)) by (rewrite E'; auto using in_or_app, in_eq).
    pose proof (window_tensor _ _ _ _ W1 _ _ _ E') as T1. simpl in T1. fold m ρ in T1.
    assert (Rd : forall a, In a (reads d) -> exists o, In o (passed p a) /\ here o a).
    { intros a J. apply IH. destruct (K a J) as [H | H]; [now left |].
      destruct (scoped_reads _ _ _ _ scoped_old St a J); auto. }
    unfold placed_at in T1, T2. simpl in T1, T2. destruct d as [f args | a].
    + assert (V : map (look σ2) args = map ρ args).
      { apply map_agree. intros a J. rewrite <- (old_reads _ _ St a J).
        apply (new_values p _ E), K, J. }
      assert (C : seen_at m (flows m (look σ2) p (rest σ)) f = seen_at m (flows m ρ p' (rest σ)) f).
      { destruct (effectful (k, Call f args)) eqn:Ef.
        - rewrite <- (same_flows _ _ _ _ _ _ E E' Ef). f_equal. apply flows_agree.
          intros [l e] a J R. pose proof scoped_new as S. rewrite E, scoped_app in S.
          apply andb_true_iff in S as [S _]. apply (new_values p _ E). eapply scoped_reads; eauto.
        - unfold seen_at. now rewrite !(sight_pure f m _ _ k args Ef). }
      rewrite V, C in T2.
      destruct (viewed f args _ (map ρ args)) as [a |] eqn:Vw.
      * destruct (Rd a (viewed_in _ _ _ _ _ Vw)) as (o & Io & L). exists o.
        split; [eapply origin_viewed; eauto |]. exact (linked_part k a o _ T1 T2 L).
      * exists (OMade k). split; [eapply origin_made; eauto |].
        apply linked_fresh; auto. now right.
    + destruct (Rd a) as (o & Io & L); [now left |]. exists o. split; [exact Io |].
      apply (linked_part k a o []); [rewrite T1 | rewrite T2 | exact L]; apply whole.
  - (* a root *)
    assert (R : In k (roots w)).
    { unfold roots. rewrite filter_In, mem_spec. split; [| exact Iold].
      apply (in_node k d). apply filter_In. rewrite St, E.
      split; [| reflexivity]. apply in_or_app. right. now left. }
    pose proof (exit_at p (k, d) q E) as X. unfold placed in X. simpl fst in X. rewrite St in X.
    apply mem_spec in Iold as Mo. rewrite Mo in X |- *.
    destruct (same_base w k && _) eqn:Sb.
    + apply andb_true_iff in Sb as [Sb Firm]. pose proof Sb as Sb'. unfold same_base in Sb'.
      apply andb_true_iff in Sb' as [Eb Fr]. apply Nat.eqb_eq in Eb.
      destruct (Nat.eqb (bases (old w) k) k) eqn:B.
      * simpl in Fr. apply andb_true_iff in Fr as [F1 F2].
        apply defines_fresh_spec in F1 as (d1 & I1 & F1).
        apply defines_fresh_spec in F2 as (d2 & I2 & F2).
        exists (OMade k). split; [now left |].
        apply linked_fresh; [now right | now right | |];
          eapply fresh_tensor; eauto.
      * simpl in Firm. apply Nat.eqb_neq in B. set (b := bases (old w) k) in *.
        destruct (base_spec σ D (old w) σ1 scoped_old W1 (old w) [] ltac:(now rewrite app_nil_r) k)
          as (B1 & H1 & P1); [now right |]. fold b in B1, H1, P1. fold m ρ in P1.
        destruct (base_spec σ D (new w) σ2 scoped_new W2 (new w) [] ltac:(now rewrite app_nil_r) k)
          as (_ & H2 & P2); [now right |]. fold m in P2. rewrite <- Eb in H2, P2.
        destruct (base_spec σ D (new w) σ2 scoped_new W2 (p ++ [(k, d)]) q
          ltac:(now rewrite <- app_assoc) k) as (B2 & _);
          [right; rewrite names_app, in_app_iff; simpl; auto |].
        assert (B3 : In b D \/ In b (names (p ++ [(k, d)]))).
        { rewrite Eb, (bases_at (new w) p k d q scoped_new E). exact B2. }
        rewrite names_app, in_app_iff in B3. simpl in B3.
        destruct (IH b) as (o & Io & L); [intuition congruence |].
        exists o. split; [exact Io |].
        assert (Fo : is_root o = false).
        { apply negb_true_iff in Firm. rewrite <- not_true_iff_false in *. intros C. apply Firm.
          apply existsb_exists. eauto. }
        apply (linked_view k b o H1 H2 Fo); [| exact L]. intros Pb. rewrite P1, P2, new_parts.
        apply same_part_app; [exact Pb |]. now apply (same_views _ _ _ holds).
    + exists (Root k). split; [now left |]. simpl. repeat split.
      * unfold moved. apply filter_In. split; [exact R |]. rewrite X. unfold among.
        destruct (in_dec _ _ _) as [| N]; [reflexivity | destruct N; now left].
      * exists []. now rewrite !app_nil_r.
Qed.

Lemma linked_exit n : In n D \/ In n (names (new w)) /\ In n (names (old w)) ->
  exists o, In o (exit w n) /\ here o n.
Proof. apply (link (new w) []). now rewrite app_nil_r. Qed.
End Two.
