(** * Where memory comes from: the analysis is right

    Each name lies in memory that one of its origins stands for, whatever operators choose. *)

From Coq Require Import List Bool PeanoNat.
Import ListNotations.
From PyPM Require Import Names.
From PyPM.legality Require Import Execution Legal Equation Windows.

Lemma assign_same {A} (O : name -> A) n a : assign O n a n = a.
Proof. unfold assign. now rewrite Nat.eqb_refl. Qed.

Lemma assign_other {A} (O : name -> A) n a m : n <> m -> assign O n a m = O m.
Proof. intros N. unfold assign. apply Nat.eqb_neq in N. now rewrite N. Qed.

(** What a pass over a graph assigns to other names stays. *)
Lemma pass_other {A} (F : (name -> A) -> node -> A) g n : forall O,
  ~ In n (names g) -> fold_left (fun O x => assign O (fst x) (F O x)) g O n = O n.
Proof.
  induction g as [| x g IH]; intros O N; [reflexivity |]. simpl in *.
  rewrite IH by tauto. apply assign_other. tauto.
Qed.

Lemma scoped_new D g n : scoped D g = true -> In n (names g) -> ~ In n D.
Proof.
  revert D. induction g as [| [k d] g IH]; intros D S I; [destruct I |].
  apply scoped_cons in S as (N & _ & S). destruct I as [<- | I]; [exact N |].
  intros J. apply (IH _ S I). now right.
Qed.

Section Origins.
Context {τ : Torch}.

Definition stands_for (o : origin) (s : storage) : Prop :=
  match o, s with
  | OGiven k, Given k' _ => k = k'
  | OMade n, Made m => n = m
  | _, _ => False
  end.

(** A storage has one origin. *)
Lemma stands_for_one o o' s : stands_for o s -> stands_for o' s -> o = o'.
Proof. destruct o, o', s; simpl; congruence || tauto. Qed.

Definition located (O : origins) (σ : state) (n : name) : Prop :=
  exists o, In o (O n) /\ stands_for o (home (env σ n)).

(** A call's result has the origins of what it views, or its own. *)
Lemma origin_viewed O n f args c vs a o :
  viewed f args c vs = Some a -> In o (O a) -> In o (origins_of O (n, Call f args)).
Proof.
  unfold viewed, origins_of, of_argument. simpl. intros V I.
  destruct (shares f) as [| i | is]; [discriminate | now rewrite V |].
  destruct (chosen f c vs) as [i |]; [| discriminate].
  destruct (mem i is) eqn:M; [| discriminate]. right. apply in_flat_map.
  exists i. apply mem_spec in M. rewrite V. auto.
Qed.

Lemma origin_made O n f args c vs :
  viewed f args c vs = None -> In (OMade n) (origins_of O (n, Call f args)).
Proof.
  unfold viewed, origins_of, of_argument. simpl. intros V.
  destruct (shares f) as [| i | is]; simpl; auto. rewrite V. now left.
Qed.

Lemma located_step O σ n d D :
  incl (reads d) D -> ~ In n D -> (forall m, In m D -> located O σ m) ->
  forall m, In m (n :: D) ->
  located (assign O n (origins_of O (n, d))) (step σ (n, d)) m.
Proof.
  intros K N L m I. unfold located. rewrite step_env. simpl fst.
  destruct (Nat.eq_dec n m) as [<- | E].
  - rewrite assign_same, bind_same. unfold placed_at. destruct d as [f args | a]; simpl snd; cbv iota.
    + destruct (viewed _ _ _ _) as [a |] eqn:V.
      * destruct (L a) as (o & Io & S); [apply K; simpl; eapply viewed_in; eauto |].
        exists o. split; [eapply origin_viewed; eauto | exact S].
      * exists (OMade n). split; [eapply origin_made; eauto | reflexivity].
    + apply (L a), K. now left.
  - rewrite assign_other, bind_other by exact E. destruct I as [-> | I]; [congruence | now apply L].
Qed.

Lemma located_run g : forall O σ D,
  scoped D g = true -> (forall m, In m D -> located O σ m) ->
  forall m, In m (rev (names g) ++ D) -> located (trace g O) (run g σ) m.
Proof.
  induction g as [| [n d] g IH]; intros O σ D S L m I; [now apply L |].
  apply scoped_cons in S as (N & K & S). simpl in I. rewrite <- app_assoc in I.
  apply (IH _ (step σ (n, d)) (n :: D) S); [| exact I]. now apply located_step.
Qed.

Lemma bounded_run g : forall σ D,
  scoped D g = true -> bounded σ D -> bounded (run g σ) (rev (names g) ++ D).
Proof.
  induction g as [| [n d] g IH]; intros σ D S B; [exact B |].
  apply scoped_cons in S as (N & K & S). simpl. rewrite <- app_assoc.
  apply (IH (step σ (n, d)) (n :: D) S). now apply step_bounded.
Qed.

(** The inputs. *)
Lemma located_start w σ :
  arranged (inputs w) σ -> forall n, In n (input_names w) -> located (start w) σ n.
Proof.
  unfold start, input_names. intros A. assert (G : forall l O n,
    incl l (inputs w) -> In n (map fst l) \/ located O σ n ->
    located (fold_left (fun O nk => assign O (fst nk) [OGiven (snd nk)]) l O) σ n).
  { induction l as [| [m k] l IH]; intros O n X I; [destruct I as [[] | I]; exact I |].
    simpl. apply IH; [intros y J; apply X; now right |]. simpl in I.
    destruct (Nat.eq_dec m n) as [-> | E].
    - right. unfold located. simpl. rewrite assign_same. exists (OGiven k).
      destruct (A n k) as (i & ->); [apply X; now left |]. simpl. auto.
    - destruct I as [[-> | I] | I]; [congruence | now left | right].
      unfold located. simpl. now rewrite assign_other. }
  intros n I. apply G; auto. intros x J. exact J.
Qed.

Lemma bounded_start w σ : arranged (inputs w) σ -> bounded σ (input_names w).
Proof.
  intros A n k I E. apply in_map_iff in I as ([m c] & <- & I). destruct (A m c I) as (i & F).
  simpl in E. congruence.
Qed.
End Origins.
