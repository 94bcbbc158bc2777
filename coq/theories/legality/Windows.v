(** * Windows without writes: execution is evaluation

    In a window where nothing is written and no mode changes, a value stays what it was when it was
    made.  So the values at its end satisfy the definitions of all its nodes, whatever their order; and
    generator and history depend on the order of the nodes with effects alone. *)

From Coq Require Import List Bool PeanoNat.
Import ListNotations.
From PyPM Require Import Names.
From PyPM.legality Require Import Execution Legal Equation.

Section Windows.
Context {τ : Torch}.

(** ** Scoping *)

Lemma scoped_app D g g' : scoped D (g ++ g') = scoped D g && scoped (rev (names g) ++ D) g'.
Proof.
  revert D. induction g as [| [n d] g IH]; intros D; [reflexivity |]. simpl.
  rewrite IH, <- app_assoc, !andb_assoc. reflexivity.
Qed.

Lemma scoped_cons D n d g :
  scoped D ((n, d) :: g) = true <->
  ~ In n D /\ incl (reads d) D /\ scoped (n :: D) g = true.
Proof.
  simpl. rewrite !andb_true_iff, negb_true_iff, subset_spec, <- not_true_iff_false, mem_spec. tauto.
Qed.

(** ** The stream of random numbers and the effects *)

Definition flow (m : mode) (ρ : valuation) (gh : generator * list event) (x : node)
    : generator * list event :=
  match snd x with
  | Same _ => gh
  | Call f args =>
      let c := sight f m (fst gh) (snd gh) in
      let vs := map ρ args in
      (if draws f then next_generator f c vs else fst gh,
       if acts f then snd gh ++ [(f, vs)] else snd gh)
  end.

Definition flows (m : mode) (ρ : valuation) (g : graph) (gh : generator * list event) :=
  fold_left (flow m ρ) g gh.

Definition seen_at (m : mode) (gh : generator * list event) (f : operator) : sees :=
  sight f m (fst gh) (snd gh).

(** The tensor of a node, from those of what it reads. *)
Definition placed_at (s : operator -> sees) (ρ : valuation) (E : name -> tensor) (x : node) : tensor :=
  match snd x with
  | Same m => E m
  | Call f args =>
      let vs := map ρ args in
      match viewed f args (s f) vs with
      | Some a => Tensor (home (E a)) (path (E a) ++ [part f (s f) vs])
      | None => Tensor (Made (fst x)) []
      end
  end.

Lemma viewed_in f args c vs a : viewed f args c vs = Some a -> In a args.
Proof.
  unfold viewed. intros E. destruct (shares f) as [| i | is]; [discriminate | |].
  - eapply nth_error_In; eauto.
  - destruct (chosen f c vs) as [i |]; [| discriminate].
    destruct (mem i is); [| discriminate]. eapply nth_error_In; eauto.
Qed.

Lemma map_agree {A : Type} (ρ ρ' : name -> A) ns :
  (forall n, In n ns -> ρ n = ρ' n) -> map ρ ns = map ρ' ns.
Proof. apply map_ext_in. Qed.

Lemma meaning_agree s ρ ρ' d : (forall n, In n (reads d) -> ρ n = ρ' n) ->
  meaning s ρ d = meaning s ρ' d.
Proof.
  intros A. destruct d as [f args | m]; simpl in *; [| auto].
  rewrite (map_agree ρ ρ' args A). destruct (viewed _ _ _ _) as [a |] eqn:E; [| reflexivity].
  apply viewed_in in E. now rewrite A.
Qed.

Lemma placed_at_agree s ρ ρ' E E' x :
  (forall n, In n (reads (snd x)) -> ρ n = ρ' n) -> (forall n, In n (reads (snd x)) -> E n = E' n) ->
  placed_at s ρ E x = placed_at s ρ' E' x.
Proof.
  intros A B. destruct x as [n [f args | m]]; unfold placed_at; simpl in *; [| auto].
  rewrite (map_agree ρ ρ' args A). destruct (viewed _ _ _ _) as [a |] eqn:F; [| reflexivity].
  apply viewed_in in F. now rewrite B.
Qed.

Lemma flow_agree m ρ ρ' gh x : (forall n, In n (reads (snd x)) -> ρ n = ρ' n) ->
  flow m ρ gh x = flow m ρ' gh x.
Proof.
  intros A. destruct x as [n [f args | k]]; unfold flow; simpl in *; [| auto].
  now rewrite (map_agree ρ ρ' args A).
Qed.

Lemma flows_agree m ρ ρ' g gh :
  (forall x n, In x g -> In n (reads (snd x)) -> ρ n = ρ' n) -> flows m ρ g gh = flows m ρ' g gh.
Proof.
  revert gh. induction g as [| x g IH]; intros gh A; [reflexivity |]. simpl.
  rewrite (flow_agree m ρ ρ' gh x) by (intros; apply (A x); simpl; auto).
  apply IH. intros y n I. apply A. now right.
Qed.

(** Only nodes with effects move them on. *)
Lemma flows_effects m ρ g gh : flows m ρ g gh = flows m ρ (effects g) gh.
Proof.
  revert gh. induction g as [| x g IH]; intros gh; [reflexivity |]. simpl.
  destruct (effectful x) eqn:E; simpl; rewrite <- IH; [reflexivity |]. unfold flows. f_equal.
  destruct x as [n [f args | k]]; unfold flow, effectful in *; simpl in *; [| reflexivity].
  apply orb_false_iff in E as [-> ->]. now destruct gh.
Qed.

Lemma sight_pure f m g h n args :
  effectful (n, Call f args) = false -> sight f m g h = only_mode m f.
Proof.
  unfold effectful, sight, only_mode. simpl. intros E.
  apply orb_false_iff in E as [-> ->]. reflexivity.
Qed.

Lemma meaning_pure m gh ρ n d :
  effectful (n, d) = false -> meaning (seen_at m gh) ρ d = pure_meaning m ρ d.
Proof.
  destruct d as [f args | k]; [| reflexivity]. intros E. unfold pure_meaning, meaning, seen_at.
  now rewrite (sight_pure f m _ _ n args E).
Qed.

(** ** One step *)

(** Every name lies in memory that was given, or that a defined name has made. *)
Definition bounded (σ : state) (D : list name) : Prop :=
  forall n k, In n D -> home (env σ n) = Made k -> In k D.

Definition rest (σ : state) : generator * list event := (now_generator σ, history σ).

Lemma bind_same e n t : bind e n t n = t.
Proof. unfold bind. now rewrite Nat.eqb_refl. Qed.

Lemma bind_other e n t m : n <> m -> bind e n t m = e m.
Proof. intros N. unfold bind. apply Nat.eqb_neq in N. now rewrite N. Qed.

Lemma update_other h s v s' : s <> s' -> update h s v s' = h s'.
Proof. intros N. unfold update. now destruct (storage_eq_dec s s'). Qed.

Lemma update_same h s v : update h s v s = v.
Proof. unfold update. now destruct (storage_eq_dec s s). Qed.

Lemma look_at_app p q v : look_at (p ++ q) v = look_at q (look_at p v).
Proof. apply fold_left_app. Qed.

Lemma step_env σ x :
  env (step σ x) = bind (env σ) (fst x) (placed_at (fun f => surround f σ) (look σ) (env σ) x).
Proof.
  destruct x as [n [f args | m]]; [| reflexivity]. unfold placed_at. simpl.
  now destruct (viewed _ _ _ _).
Qed.

Lemma step_rest σ x : rest (step σ x) = flow (now_mode σ) (look σ) (rest σ) x.
Proof. destruct x as [n [f args | m]]; reflexivity. Qed.

Lemma step_quiet_mode σ x : quiet x = true -> now_mode (step σ x) = now_mode σ.
Proof.
  intros Q. apply andb_true_iff in Q as [_ Q].
  destruct x as [n [f args | m]]; unfold keeps_modes in Q; simpl in *; [| reflexivity].
  now destruct (switches f).
Qed.

Lemma step_quiet_heap σ x s :
  quiet x = true -> s <> Made (fst x) -> heap (step σ x) s = heap σ s.
Proof.
  intros Q N. apply andb_true_iff in Q as [Q _].
  destruct x as [n [f args | m]]; unfold writes_nothing in Q; simpl in *; [| reflexivity].
  destruct (writes f); [| discriminate]. simpl.
  destruct (viewed _ _ _ _); [reflexivity |]. simpl. apply update_other. congruence.
Qed.

Section Step.
Variables (σ : state) (D : list name) (n : name) (d : definition).
Hypothesis is_quiet : quiet (n, d) = true.
Hypothesis unknown : ~ In n D.
Hypothesis known : incl (reads d) D.
Hypothesis bound : bounded σ D.

Let σ' := step σ (n, d).

Lemma step_old_env m : In m D -> env σ' m = env σ m.
Proof. intros I. unfold σ'. rewrite step_env. apply bind_other. simpl. congruence. Qed.

Lemma step_old_heap m : In m D -> heap σ' (home (env σ m)) = heap σ (home (env σ m)).
Proof.
  intros I. apply step_quiet_heap; [exact is_quiet |]. simpl. intros E.
  apply unknown. eapply bound; eauto.
Qed.

Lemma step_old_look m : In m D -> look σ' m = look σ m.
Proof. intros I. unfold look. now rewrite step_old_env, step_old_heap. Qed.

Lemma step_new_tensor : env σ' n = placed_at (seen_at (now_mode σ) (rest σ)) (look σ) (env σ) (n, d).
Proof. unfold σ'. rewrite step_env. apply bind_same. Qed.

Lemma step_new_value : look σ' n = meaning (seen_at (now_mode σ) (rest σ)) (look σ) d.
Proof.
  pose proof step_old_heap as H. pose proof known as K. pose proof is_quiet as Q.
  unfold look at 1. rewrite step_new_tensor. unfold placed_at. unfold σ' in *.
  clear is_quiet known. destruct d as [f args | m]; simpl snd; cbv iota.
  - unfold seen_at, rest, meaning. simpl fst. simpl snd. fold (surround f σ).
    destruct (viewed f args (surround f σ) (map (look σ) args)) as [a |] eqn:V.
    + simpl home. simpl path. rewrite look_at_app, H; [reflexivity |].
      apply K. simpl. eapply viewed_in; eauto.
    + apply andb_true_iff in Q as [Q _]. unfold writes_nothing in Q. simpl in Q |- *.
      destruct (writes f); [| discriminate]. simpl.
      rewrite V. simpl. apply update_same.
  - simpl meaning. rewrite H; [reflexivity |]. apply K. now left.
Qed.

Lemma step_bounded : bounded σ' (n :: D).
Proof using unknown known bound.
  clear is_quiet. pose proof known as K. intros m k I E. destruct (Nat.eq_dec n m) as [<- | N].
  - rewrite step_new_tensor in E. unfold placed_at in E. clear known I.
    destruct d as [f args | a]; simpl in E.
    + destruct (viewed _ _ _ _) as [a |] eqn:V; simpl in E.
      * right. eapply bound; [| exact E]. apply K. simpl. eapply viewed_in; eauto.
      * injection E as <-. now left.
    + right. eapply bound; [| exact E]. apply K. now left.
  - destruct I as [-> | I]; [congruence |]. rewrite step_old_env in E by exact I. right. eauto.
Qed.
End Step.

(** ** A window *)

Record window_spec (σ : state) (D : list name) (g : graph) (σ2 : state) : Prop := {
  window_mode : now_mode σ2 = now_mode σ;
  window_rest : rest σ2 = flows (now_mode σ) (look σ2) g (rest σ);
  window_env : forall n, In n D -> env σ2 n = env σ n;
  window_look : forall n, In n D -> look σ2 n = look σ n;
  window_heap : forall s, (forall n, In n (names g) -> s <> Made n) -> heap σ2 s = heap σ s;
  window_bounded : bounded σ2 (rev (names g) ++ D);
  window_value : forall p n d q, g = p ++ (n, d) :: q ->
    look σ2 n = meaning (seen_at (now_mode σ) (flows (now_mode σ) (look σ2) p (rest σ))) (look σ2) d;
  window_tensor : forall p x q, g = p ++ x :: q ->
    env σ2 (fst x) =
    placed_at (seen_at (now_mode σ) (flows (now_mode σ) (look σ2) p (rest σ))) (look σ2) (env σ2) x
}.

Lemma window g : forall σ D,
  scoped D g = true -> forallb quiet g = true -> bounded σ D -> window_spec σ D g (run g σ).
Proof.
  induction g as [| [n d] g IH]; intros σ D S Q B.
  { split; simpl; auto; intros [| ? ?]; discriminate. }
  apply scoped_cons in S as (N & K & S). simpl in Q. apply andb_true_iff in Q as [Q Qs].
  specialize (IH (step σ (n, d)) (n :: D) S Qs ltac:(now apply step_bounded)).
  change (run ((n, d) :: g) σ) with (run g (step σ (n, d))).
  set (σ' := step σ (n, d)) in *. set (σ2 := run g σ') in *.
  pose proof (step_quiet_mode σ (n, d) Q) as M. fold σ' in M.
  assert (L : forall m, In m D -> look σ2 m = look σ m).
  { intros m I. rewrite (window_look _ _ _ _ IH) by (now right). now apply (step_old_look σ D). }
  assert (T : forall m, In m D -> env σ2 m = env σ m).
  { intros m I. rewrite (window_env _ _ _ _ IH) by (now right). now apply (step_old_env σ D). }
  assert (R : rest σ' = flow (now_mode σ) (look σ2) (rest σ) (n, d)).
  { unfold σ'. rewrite step_rest. apply flow_agree. intros m I. symmetry. apply L, K, I. }
  split.
  - rewrite (window_mode _ _ _ _ IH). exact M.
  - rewrite (window_rest _ _ _ _ IH), M, R. reflexivity.
  - exact T.
  - exact L.
  - intros s A. rewrite (window_heap _ _ _ _ IH).
    + apply step_quiet_heap; [exact Q |]. simpl. apply A. now left.
    + intros m I. apply A. now right.
  - intros m k I E. simpl. rewrite <- app_assoc. simpl.
    eapply (window_bounded _ _ _ _ IH); [| exact E]. simpl in I. now rewrite <- app_assoc in I.
  - intros [| y p] m e q E.
    + injection E as <- <- <-. simpl.
      rewrite (window_look _ _ _ _ IH) by (now left). unfold σ'. rewrite (step_new_value σ D); auto.
      apply meaning_agree. intros k I. symmetry. apply L, K, I.
    + injection E as <- E. rewrite (window_value _ _ _ _ IH p m e q E), M, R. reflexivity.
  - intros [| y p] x q E.
    + injection E as <- <-. simpl.
      rewrite (window_env _ _ _ _ IH) by (now left). unfold σ'. rewrite step_new_tensor.
      apply placed_at_agree; intros k I; symmetry; [apply L | apply T]; apply K, I.
    + injection E as <- E. rewrite (window_tensor _ _ _ _ IH p x q E), M, R. reflexivity.
Qed.
End Windows.
