(** * Tabling: a call does again what it did before

    What a pattern does at a subject depends on the values that its names stand for, and on which of
    those that are unbound are one location; not on what else the store holds, nor on where it holds it
    ([evaluates_alike]).  So a call that failed fails again, and the matcher need not search it. *)

From Coq Require Import List Bool PeanoNat Lia.
Import ListNotations.
From PyPM Require Import Names Values Terms Guards Patterns Declarative Stores Machine Enumeration
  BigStep.

Section Tabling.
Context {Δ : Domain} {T : Type} {Σ : Structure T}.

(** ** Stores that agree on some locations *)

Definition allocated (σ : store T) (l : loc) : Prop :=
  match l with LFresh n => n < next σ | LFree _ => True end.

Definition unused (σ : store T) : Prop := forall n, next σ <= n -> get σ (LFresh n) = None.

(** [L] pairs locations of one store with those of another, both allocated and of the same contents; an
    unbound one with one only. *)
Record agree (L : loc -> loc -> Prop) (σ σ' : store T) : Prop := {
  agree_get : forall l l', L l l' -> get σ l = get σ' l';
  agree_fun : forall l l1 l2, get σ l = None -> L l l1 -> L l l2 -> l1 = l2;
  agree_inj : forall l1 l2 l, get σ' l = None -> L l1 l -> L l2 l -> l1 = l2;
  agree_here : forall l l', L l l' -> allocated σ l /\ allocated σ' l';
  agree_unused : unused σ /\ unused σ'
}.

(** The names of two environments stand at paired locations. *)
Definition paired (L : loc -> loc -> Prop) (ρ ρ' : locs) : Prop :=
  forall x, match ρ x, ρ' x with
            | Some l, Some l' => L l l'
            | None, None => True
            | _, _ => False
            end.

Lemma agree_fewer (L L' : loc -> loc -> Prop) σ σ' :
  (forall l l', L l l' -> L' l l') -> agree L' σ σ' -> agree L σ σ'.
Proof. intros S [G F I H U]. split; eauto. Qed.

Lemma same_values L σ σ' ρ ρ' x :
  agree L σ σ' -> paired L ρ ρ' -> (get σ ∘ ρ) x = (get σ' ∘ ρ') x.
Proof.
  intros A P. unfold compose. specialize (P x).
  destruct (ρ x), (ρ' x); try contradiction; auto. now apply (agree_get L).
Qed.

Lemma paired_callenv L ρ ρ' xs ys :
  paired L ρ ρ' -> paired L (callenv xs ys ρ) (callenv xs ys ρ').
Proof. intros P x. unfold callenv. destruct (arg xs ys x); [apply P | exact I]. Qed.

Lemma agree_set L σ σ' l l' v :
  agree L σ σ' -> L l l' -> get σ' l' = None -> agree L (set σ l v) (set σ' l' v).
Proof.
  intros [G F I H [U U']] P E0'. assert (E0 : get σ l = None) by (rewrite (G l l' P); auto).
  destruct (H l l' P) as [B B'].
  assert (Q : forall k k', L k k' -> loc_eqb k l = loc_eqb k' l').
  { intros k k' K. destruct (loc_eqb k l) eqn:E.
    - apply loc_eqb_spec in E as ->. assert (k' = l') as -> by eauto.
      symmetry. apply loc_eqb_refl.
    - symmetry. apply not_true_is_false. intros E'. apply loc_eqb_spec in E' as ->.
      assert (k = l) as -> by eauto. now rewrite loc_eqb_refl in E. }
  split; auto.
  - intros k k' K. rewrite !get_set, (Q k k' K). destruct (loc_eqb k' l'); auto.
  - intros k l1 l2 E. rewrite get_set in E. destruct (loc_eqb k l); [discriminate | now apply F].
  - intros l1 l2 k E. rewrite get_set in E. destruct (loc_eqb k l'); [discriminate | now apply I].
  - split; intros n N; rewrite get_set; simpl in N.
    + destruct (loc_eqb (LFresh n) l) eqn:E; auto. apply loc_eqb_spec in E as <-. simpl in B. lia.
    + destruct (loc_eqb (LFresh n) l') eqn:E; auto. apply loc_eqb_spec in E as <-. simpl in B'. lia.
Qed.

Lemma agree_bind L σ σ' ρ ρ' x v :
  agree L σ σ' -> paired L ρ ρ' ->
  match bind_name σ ρ x v, bind_name σ' ρ' x v with
  | Some τ, Some τ' => agree L τ τ'
  | None, None => True
  | _, _ => False
  end.
Proof.
  intros A P. unfold bind_name. specialize (P x).
  destruct (ρ x) as [l |], (ρ' x) as [l' |]; simpl; try contradiction; auto.
  unfold bind. rewrite (agree_get L σ σ' A l l' P).
  destruct (get σ' l') as [w |] eqn:E; [destruct (veqb w v); auto |]. now apply agree_set.
Qed.

(** A fresh location of each. *)
Definition with_fresh (L : loc -> loc -> Prop) (σ σ' : store T) : loc -> loc -> Prop :=
  fun l l' => L l l' \/ (l = LFresh (next σ) /\ l' = LFresh (next σ')).

Lemma agree_alloc L σ σ' :
  agree L σ σ' -> agree (with_fresh L σ σ') (alloc σ) (alloc σ').
Proof.
  intros [G F I H [U U']].
  assert (N : forall l, ~ L (LFresh (next σ)) l).
  { intros l K. apply H in K as [K _]. simpl in K. lia. }
  assert (N' : forall l, ~ L l (LFresh (next σ'))).
  { intros l K. apply H in K as [_ K]. simpl in K. lia. }
  unfold with_fresh. split.
  - intros l l' [K | [-> ->]]; [now apply G |]. change (get σ (LFresh (next σ)) = get σ' (LFresh (next σ'))).
    rewrite U, U' by lia. reflexivity.
  - intros l l1 l2 E0 [K | [-> ->]] [K' | [E ->]]; subst; auto; [now apply (F l) | |];
      exfalso; eapply N; eauto.
  - intros l1 l2 l E0 [K | [-> ->]] [K' | [-> E]]; subst; auto; [now apply (I _ _ l) | |];
      exfalso; eapply N'; eauto.
  - assert (M : forall τ l, allocated τ l -> allocated (alloc τ) l).
    { intros τ [y | n] B; simpl in *; auto. }
    intros l l' [K | [-> ->]]; [apply H in K as [B B']; auto |]. simpl. lia.
  - split; intros n B; simpl in B.
    + change (get σ (LFresh n) = None). apply U. lia.
    + change (get σ' (LFresh n) = None). apply U'. lia.
Qed.

Lemma paired_update (L L' : loc -> loc -> Prop) ρ ρ' x l l' :
  (forall l l', L l l' -> L' l l') -> paired L ρ ρ' -> L' l l' ->
  paired L' (update ρ x l) (update ρ' x l').
Proof.
  intros S P K y. unfold update. destruct (Nat.eqb y x); auto. specialize (P y).
  destruct (ρ y), (ρ' y); auto.
Qed.

(** ** Lists of answers that agree *)

Lemma pairwise (r r' : store T -> store T -> Prop) o o' :
  (forall τ τ', r τ τ' -> r' τ τ') -> Forall2 r o o' -> Forall2 r' o o'.
Proof. intros S. induction 1; auto. Qed.

Lemma agree_option L (o o' : option (store T)) :
  match o, o' with
  | Some τ, Some τ' => agree L τ τ'
  | None, None => True
  | _, _ => False
  end -> Forall2 (agree L) (option_list o) (option_list o').
Proof. destruct o, o'; simpl; intros A; try contradiction; auto. Qed.

Lemma agree_filter L (f f' : store T -> bool) o o' :
  (forall τ τ', agree L τ τ' -> f τ = f' τ') -> Forall2 (agree L) o o' ->
  Forall2 (agree L) (filter f o) (filter f' o').
Proof.
  intros E. induction 1 as [| τ τ' o o' A _ IH]; simpl; auto. rewrite (E τ τ' A).
  destruct (f' τ'); auto.
Qed.

Lemma agree_flat_map L (f f' : store T -> list (store T)) o o' :
  (forall τ τ', agree L τ τ' -> Forall2 (agree L) (f τ) (f' τ')) -> Forall2 (agree L) o o' ->
  Forall2 (agree L) (flat_map f o) (flat_map f' o').
Proof.
  intros E. induction 1 as [| τ τ' o o' A _ IH]; simpl; auto. apply Forall2_app; auto.
Qed.

Lemma guard_alike L ρ ρ' g σ σ' :
  agree L σ σ' -> paired L ρ ρ' -> guard_holds ρ g σ = guard_holds ρ' g σ'.
Proof.
  intros A P. unfold guard_holds. rewrite (geval_agree (get σ ∘ ρ) (get σ' ∘ ρ')); auto.
  intros x _. eapply same_values; eauto.
Qed.

Lemma assign_alike L ρ ρ' x e σ σ' :
  agree L σ σ' -> paired L ρ ρ' ->
  Forall2 (agree L) (option_list (assign ρ x e σ)) (option_list (assign ρ' x e σ')).
Proof.
  intros A P. apply agree_option. unfold assign.
  rewrite (eval_agree (get σ ∘ ρ) (get σ' ∘ ρ')) by (intros y _; eapply same_values; eauto).
  destruct (eval _ e) as [v |]; simpl; auto. now apply agree_bind.
Qed.

(** ** What a pattern does depends on the values of its names alone *)

Lemma evaluates_alike_mut :
  (forall R ρ p t σ o, evaluates R ρ p t σ o -> forall L ρ' σ',
     agree L σ σ' -> paired L ρ ρ' ->
     exists o', evaluates R ρ' p t σ' o' /\ Forall2 (agree L) o o') /\
  (forall R ρ ps ts σ o, evaluates_children R ρ ps ts σ o -> forall L ρ' σ',
     agree L σ σ' -> paired L ρ ρ' ->
     exists o', evaluates_children R ρ' ps ts σ' o' /\ Forall2 (agree L) o o') /\
  (forall R ρ ps ts σs o, evaluates_each R ρ ps ts σs o -> forall L ρ' σs',
     Forall2 (agree L) σs σs' -> paired L ρ ρ' ->
     exists o', evaluates_each R ρ' ps ts σs' o' /\ Forall2 (agree L) o o') /\
  (forall R ρ p x σs o, evaluates_constraint R ρ p x σs o -> forall L ρ' σs',
     Forall2 (agree L) σs σs' -> paired L ρ ρ' ->
     exists o', evaluates_constraint R ρ' p x σs' o' /\ Forall2 (agree L) o o').
Proof.
  apply (evaluates_mutind
    (fun R ρ p t σ o _ => forall L ρ' σ', agree L σ σ' -> paired L ρ ρ' ->
       exists o', evaluates R ρ' p t σ' o' /\ Forall2 (agree L) o o')
    (fun R ρ ps ts σ o _ => forall L ρ' σ', agree L σ σ' -> paired L ρ ρ' ->
       exists o', evaluates_children R ρ' ps ts σ' o' /\ Forall2 (agree L) o o')
    (fun R ρ ps ts σs o _ => forall L ρ' σs', Forall2 (agree L) σs σs' -> paired L ρ ρ' ->
       exists o', evaluates_each R ρ' ps ts σs' o' /\ Forall2 (agree L) o o')
    (fun R ρ p x σs o _ => forall L ρ' σs', Forall2 (agree L) σs σs' -> paired L ρ ρ' ->
       exists o', evaluates_constraint R ρ' p x σs' o' /\ Forall2 (agree L) o o')).
  - (* var *) intros R ρ x t σ L ρ' σ' A P. eexists. split; [constructor |].
    apply agree_option. now apply agree_bind.
  - (* op *) intros R ρ f ps t ts σ o D Len _ IH L ρ' σ' A P.
    destruct (IH L ρ' σ' A P) as (o' & H & F). exists o'. split; auto. econstructor; eauto.
  - (* op fails *) intros R ρ f ps t g ts σ D N L ρ' σ' A P. exists []. split; auto.
    eapply E_op_fail; eauto.
  - (* fun *) intros R ρ F ps t f ts σ o D Len _ IH L ρ' σ' A P.
    destruct (IH L ρ' (option_list (bind_name σ' ρ' F (VOp f)))) as (o' & H & Fo); auto.
    { apply agree_option. now apply agree_bind. }
    exists o'. split; auto. eapply E_fun; eauto.
  - (* fun fails *) intros R ρ F ps t f ts σ D N L ρ' σ' A P. exists []. split; auto.
    eapply E_fun_fail; eauto.
  - (* alt *) intros R ρ p q t σ o1 o2 _ IHp _ IHq L ρ' σ' A P.
    destruct (IHp L ρ' σ' A P) as (o1' & H1 & F1). destruct (IHq L ρ' σ' A P) as (o2' & H2 & F2).
    exists (o1' ++ o2'). split; [now constructor | now apply Forall2_app].
  - (* ex *) intros R ρ x p t σ o l E _ IH L ρ' σ' A P. subst l.
    destruct (IH (with_fresh L σ σ') (update ρ' x (LFresh (next σ'))) (alloc σ')) as (o' & H & F).
    + now apply agree_alloc.
    + eapply paired_update; [| exact P |]; unfold with_fresh; auto.
    + exists (filter (is_bound (LFresh (next σ'))) o'). split; [econstructor; eauto |].
      apply (agree_filter _ (is_bound (LFresh (next σ))) (is_bound (LFresh (next σ')))) in F.
      * eapply pairwise; [| exact F]. intros τ τ'. apply agree_fewer. unfold with_fresh. auto.
      * intros τ τ' Aτ. unfold is_bound.
        rewrite (agree_get _ _ _ Aτ (LFresh (next σ)) (LFresh (next σ'))); auto.
        unfold with_fresh. auto.
  - (* guard *) intros R ρ p g t σ o _ IH L ρ' σ' A P. destruct (IH L ρ' σ' A P) as (o' & H & F).
    exists (filter (guard_holds ρ' g) o'). split; [now constructor |].
    eapply agree_filter; eauto. intros τ τ' Aτ. eapply guard_alike; eauto.
  - (* let *) intros R ρ p x e t σ o _ IH L ρ' σ' A P. destruct (IH L ρ' σ' A P) as (o' & H & F).
    eexists. split; [econstructor; eauto |]. eapply agree_flat_map; eauto.
    intros τ τ' Aτ. now apply assign_alike.
  - (* match *) intros R ρ p p' x t σ o o1 _ IH _ IH' L ρ' σ' A P.
    destruct (IH L ρ' σ' A P) as (o' & H & F). destruct (IH' L ρ' o' F P) as (o1' & H' & F').
    exists o1'. split; auto. econstructor; eauto.
  - (* mu *) intros R ρ xs ins outs small b ys t σ o _ IH L ρ' σ' A P.
    destruct (IH L (callenv xs ys ρ') σ' A) as (o' & H & F); [now apply paired_callenv |].
    exists o'. split; auto. now constructor.
  - (* call *) intros R ρ i ys t σ d R' o E _ IH L ρ' σ' A P.
    destruct (IH L (callenv (d_params d) ys ρ') σ' A) as (o' & H & F); [now apply paired_callenv |].
    exists o'. split; auto. econstructor; eauto.
  - (* call fails *) intros R ρ i ys t σ E L ρ' σ' A P. exists []. split; auto. now apply E_call_fail.
  - (* no children *) intros R ρ σ L ρ' σ' A P. exists [σ']. split; [constructor | auto].
  - (* children *) intros R ρ p ps t ts σ o o1 _ IHp _ IHps L ρ' σ' A P.
    destruct (IHp L ρ' σ' A P) as (o' & H & F). destruct (IHps L ρ' o' F P) as (o1' & H' & F').
    exists o1'. split; auto. econstructor; eauto.
  - (* from no store *) intros R ρ ps ts L ρ' σs' F P. inversion F; subst. exists [].
    split; [constructor | auto].
  - (* from each store *) intros R ρ ps ts σ σs o o1 _ IH _ IHs L ρ' σs' F P.
    inversion F as [| ? σ' ? σs1 A F']; subst.
    destruct (IH L ρ' σ' A P) as (o' & H & Fo). destruct (IHs L ρ' σs1 F' P) as (o1' & H' & Fo').
    exists (o' ++ o1'). split; [now constructor | now apply Forall2_app].
  - (* constraint, no store *) intros R ρ p x L ρ' σs' F P. inversion F; subst. exists [].
    split; [constructor | auto].
  - (* constraint *) intros R ρ p x t σ σs o o1 G _ IH _ IHs L ρ' σs' F P.
    inversion F as [| ? σ' ? σs1 A F']; subst.
    destruct (IH L ρ' σ' A P) as (o' & H & Fo). destruct (IHs L ρ' σs1 F' P) as (o1' & H' & Fo').
    exists (o' ++ o1'). split; [| now apply Forall2_app]. econstructor; eauto.
    now rewrite <- (same_values L σ σ' ρ ρ' x A P).
  - (* constraint, skipped *) intros R ρ p x σ σs o1 N _ IHs L ρ' σs' F P.
    inversion F as [| ? σ' ? σs1 A F']; subst.
    destruct (IHs L ρ' σs1 F' P) as (o1' & H' & Fo'). exists o1'. split; auto.
    apply E_con_skip; auto. intros t. rewrite <- (same_values L σ σ' ρ ρ' x A P). apply N.
Qed.

(** ** Two calls that look alike *)

(** A name stands at an allocated location, and no other location is in use. *)
Definition located (σ : store T) (ρ : locs) : Prop :=
  unused σ /\ forall x l, ρ x = Some l -> allocated σ l.

(** What the matcher compares of two calls, by the names of their parameters: which are in scope, what
    they are bound to, and which of those that are unbound are one location. *)
Record alike (σ : store T) (ρ : locs) (σ' : store T) (ρ' : locs) : Prop := {
  alike_scope : forall x, ρ x = None <-> ρ' x = None;
  alike_value : forall x, (get σ ∘ ρ) x = (get σ' ∘ ρ') x;
  alike_unbound : forall x y, (get σ ∘ ρ) x = None -> ρ x <> None -> (ρ x = ρ y <-> ρ' x = ρ' y)
}.

Lemma alike_pairs σ ρ σ' ρ' :
  located σ ρ -> located σ' ρ' -> alike σ ρ σ' ρ' -> exists L, agree L σ σ' /\ paired L ρ ρ'.
Proof.
  intros [U B] [U' B'] [S V N].
  set (L := fun l l' => exists x, ρ x = Some l /\ ρ' x = Some l').
  assert (P : paired L ρ ρ').
  { intros x. specialize (S x). destruct (ρ x) as [l |] eqn:E, (ρ' x) as [l' |] eqn:E'; auto.
    - now exists x.
    - destruct S as [_ S]. now specialize (S eq_refl).
    - destruct S as [S _]. now specialize (S eq_refl). }
  assert (G : forall x l l', ρ x = Some l -> ρ' x = Some l' -> get σ l = get σ' l').
  { intros x l l' E E'. specialize (V x). unfold compose in V. now rewrite E, E' in V. }
  assert (A : agree L σ σ').
  { split; auto.
    - intros l l' (x & E & E'). eauto.
    - intros l l1 l2 E0 (x & E & E') (y & F & F').
      assert (Q : ρ x = ρ y) by congruence. apply N in Q; [congruence | | congruence].
      unfold compose. now rewrite E.
    - intros l1 l2 l E0 (x & E & E') (y & F & F').
      assert (Q : ρ' x = ρ' y) by congruence. apply N in Q; [congruence | | congruence].
      unfold compose. now rewrite E, (G x l1 l E E').
    - intros l l' (x & E & E'). eauto. }
  now exists L.
Qed.

Theorem alike_calls R p t σ ρ σ' ρ' o :
  located σ ρ -> located σ' ρ' -> alike σ ρ σ' ρ' ->
  evaluates R ρ p t σ o ->
  exists o', evaluates R ρ' p t σ' o' /\
    Forall2 (fun τ τ' => forall x, (get τ ∘ ρ) x = (get τ' ∘ ρ') x) o o'.
Proof.
  intros B B' C H. destruct (alike_pairs _ _ _ _ B B' C) as (L & A & P).
  destruct (proj1 evaluates_alike_mut _ _ _ _ _ _ H L ρ' σ' A P) as (o' & H' & F).
  exists o'. split; auto. eapply pairwise; [| exact F]. intros τ τ' At x.
  eapply same_values; eauto.
Qed.

(** So a call that failed fails again. *)
Corollary failed_again R p t σ ρ σ' ρ' :
  located σ ρ -> located σ' ρ' -> alike σ ρ σ' ρ' ->
  evaluates R ρ p t σ [] -> evaluates R ρ' p t σ' [].
Proof.
  intros B B' A H. destruct (alike_calls _ _ _ _ _ _ _ _ B B' A H) as (o' & H' & F).
  now inversion F; subst.
Qed.
(** ** A call with nothing left to bind leaves everything as it was *)

(** What an answer knows: all that was known, nothing new of locations that no name stands at, and no
    location beyond those that it has allocated. *)
Record follows (ρ : locs) (σ τ : store T) : Prop := {
  follows_knows : get σ ⊆ get τ;
  follows_next : next σ <= next τ;
  follows_frame : forall l, allocated σ l -> (forall x, ρ x <> Some l) -> get τ l = get σ l;
  follows_unused : unused σ -> located σ ρ -> unused τ
}.

Lemma follows_refl ρ σ : follows ρ σ σ.
Proof. split; auto using extends_refl. Qed.

Lemma allocated_mono (σ τ : store T) l : next σ <= next τ -> allocated σ l -> allocated τ l.
Proof. destruct l; simpl; auto. lia. Qed.

Lemma located_follows ρ σ τ : follows ρ σ τ -> located σ ρ -> located τ ρ.
Proof.
  intros [K N F U] L. split; [apply U; auto; apply L |].
  intros x l E. eapply allocated_mono; eauto. now apply L in E.
Qed.

Lemma follows_trans ρ σ τ υ : follows ρ σ τ -> follows ρ τ υ -> follows ρ σ υ.
Proof.
  intros A B. split.
  - eapply extends_trans; [apply A | apply B].
  - destruct A, B. lia.
  - intros l H N. assert (H' : allocated τ l) by (eapply allocated_mono; [apply A | exact H]).
    rewrite (follows_frame _ _ _ B l H' N). now apply A.
  - intros U L. apply B; [now apply A | eapply located_follows; eauto].
Qed.

Lemma follows_bind ρ x v σ τ : bind_name σ ρ x v = Some τ -> follows ρ σ τ.
Proof.
  intros B. apply bind_name_loc in B as (l & E & B).
  apply bind_cases in B as [[G ->] | [G ->]]; [apply follows_refl |]. split.
  - intros k w H. rewrite get_set. destruct (loc_eqb k l) eqn:Q; auto.
    apply loc_eqb_spec in Q. congruence.
  - auto.
  - intros k _ N. rewrite get_set. destruct (loc_eqb k l) eqn:Q; auto.
    apply loc_eqb_spec in Q as ->. now apply N in E.
  - intros U [_ L] n B. rewrite get_set. destruct (loc_eqb (LFresh n) l) eqn:Q; auto.
    apply loc_eqb_spec in Q as <-. apply L in E. simpl in *. lia.
Qed.

Lemma follows_fewer ρ ρ' σ τ :
  (forall x l, ρ' x = Some l -> exists y, ρ y = Some l) -> follows ρ' σ τ -> follows ρ σ τ.
Proof.
  intros S [K N F U]. split; auto.
  - intros l H M. apply F; auto. intros x E. apply S in E as (y & E). now apply M in E.
  - intros Un [_ L]. apply U; auto. split; auto. intros x l E. apply S in E as (y & E). eauto.
Qed.

Lemma follows_local ρ x σ τ :
  follows (update ρ x (LFresh (next σ))) (alloc σ) τ -> follows ρ σ τ.
Proof.
  intros [K N F U]. simpl in N. split.
  - exact K.
  - lia.
  - intros l H M. apply (F l).
    + destruct l; simpl in *; auto.
    + intros y. unfold update. destruct (Nat.eqb y x); [| apply M].
      intros [= <-]. simpl in H. lia.
  - intros Un [_ L]. apply U.
    + intros n B. simpl in B. change (get σ (LFresh n) = None). apply Un. lia.
    + split; [intros n B; simpl in B; change (get σ (LFresh n) = None); apply Un; lia |].
      intros y l. unfold update. destruct (Nat.eqb y x).
      * intros [= <-]. simpl. lia.
      * intros E. apply L in E. destruct l; simpl in *; auto.
Qed.

Lemma callenv_range xs ys (ρ : locs) x l : callenv xs ys ρ x = Some l -> exists y, ρ y = Some l.
Proof. unfold callenv. destruct (arg xs ys x) as [y |]; [eauto | discriminate]. Qed.

Lemma evaluates_follows :
  (forall R ρ p t σ o, evaluates R ρ p t σ o -> forall τ, In τ o -> follows ρ σ τ) /\
  (forall R ρ ps ts σ o, evaluates_children R ρ ps ts σ o -> forall τ, In τ o -> follows ρ σ τ) /\
  (forall R ρ ps ts σs o, evaluates_each R ρ ps ts σs o -> forall τ, In τ o ->
     exists σ, In σ σs /\ follows ρ σ τ) /\
  (forall R ρ p x σs o, evaluates_constraint R ρ p x σs o -> forall τ, In τ o ->
     exists σ, In σ σs /\ follows ρ σ τ).
Proof.
  apply (evaluates_mutind
    (fun R ρ p t σ o _ => forall τ, In τ o -> follows ρ σ τ)
    (fun R ρ ps ts σ o _ => forall τ, In τ o -> follows ρ σ τ)
    (fun R ρ ps ts σs o _ => forall τ, In τ o -> exists σ, In σ σs /\ follows ρ σ τ)
    (fun R ρ p x σs o _ => forall τ, In τ o -> exists σ, In σ σs /\ follows ρ σ τ)).
  - (* var *) intros R ρ x t σ τ I. destruct (bind_name _ _ _ _) eqn:B; [| destruct I].
    destruct I as [<- | []]. eapply follows_bind; eauto.
  - (* op *) auto.
  - (* op fails *) intros ? ? ? ? ? ? ? ? ? ? τ [].
  - (* fun *) intros R ρ F ps t f ts σ o _ _ _ IH τ I. destruct (IH τ I) as (υ & Iυ & Fυ).
    destruct (bind_name _ _ _ _) eqn:B; [| destruct Iυ]. destruct Iυ as [<- | []].
    eapply follows_trans; eauto. eapply follows_bind; eauto.
  - (* fun fails *) intros ? ? ? ? ? ? ? ? ? ? τ [].
  - (* alt *) intros R ρ p q t σ o o' _ IHp _ IHq τ I. apply in_app_or in I as [I | I]; auto.
  - (* ex *) intros R ρ x p t σ o l -> _ IH τ I. apply filter_In in I as [I _].
    eapply follows_local; eauto.
  - (* guard *) intros R ρ p g t σ o _ IH τ I. apply filter_In in I as [I _]. auto.
  - (* let *) intros R ρ p x e t σ o _ IH τ I. apply in_flat_map in I as (υ & Iυ & I).
    unfold assign in I. destruct (eval _ e) as [v |]; [| destruct I]. simpl in I.
    destruct (bind_name _ _ _ _) eqn:B; [| destruct I]. destruct I as [<- | []].
    eapply follows_trans; [exact (IH _ Iυ) | eapply follows_bind; eauto].
  - (* match *) intros R ρ p p' x t σ o o' _ IH _ IH' τ I. destruct (IH' τ I) as (υ & Iυ & F).
    eapply follows_trans; [exact (IH _ Iυ) | exact F].
  - (* mu *) intros R ρ xs ins outs small b ys t σ o _ IH τ I.
    eapply follows_fewer; [apply callenv_range | apply IH, I].
  - (* call *) intros R ρ i ys t σ d R' o _ _ IH τ I.
    eapply follows_fewer; [apply callenv_range | apply IH, I].
  - (* call fails *) intros ? ? ? ? ? ? ? τ [].
  - (* no children *) intros R ρ σ τ [<- | []]. apply follows_refl.
  - (* children *) intros R ρ p ps t ts σ o o' _ IHp _ IHps τ I.
    destruct (IHps τ I) as (υ & Iυ & F). eapply follows_trans; [exact (IHp _ Iυ) | exact F].
  - (* from no store *) intros ? ? ? ? τ [].
  - (* from each store *) intros R ρ ps ts σ σs o o' _ IH _ IHs τ I.
    apply in_app_or in I as [I | I]; [exists σ; simpl; auto |].
    destruct (IHs τ I) as (υ & Iυ & F). exists υ. simpl. auto.
  - (* constraint, no store *) intros ? ? ? ? τ [].
  - (* constraint *) intros R ρ p x t σ σs o o' _ _ IH _ IHs τ I.
    apply in_app_or in I as [I | I]; [exists σ; simpl; auto |].
    destruct (IHs τ I) as (υ & Iυ & F). exists υ. simpl. auto.
  - (* constraint, skipped *) intros R ρ p x σ σs o' _ _ IHs τ I.
    destruct (IHs τ I) as (υ & Iυ & F). exists υ. simpl. auto.
Qed.

(** A search begins so, and stays so: after an answer, inside of a binder, and in a call. *)
Theorem stays_located :
  located empty ρ0 /\
  forall σ ρ, located σ ρ ->
    (forall R p t o τ, evaluates R ρ p t σ o -> In τ o -> located τ ρ) /\
    (forall x, located (alloc σ) (update ρ x (LFresh (next σ)))) /\
    (forall xs ys, located σ (callenv xs ys ρ)).
Proof.
  split; [split; [now intros n _ | now intros x l [= <-]] |].
  intros σ ρ [U L]. repeat split; auto.
  - eapply (located_follows ρ σ); [eapply (proj1 evaluates_follows); eauto | now split].
  - eapply (located_follows ρ σ); [eapply (proj1 evaluates_follows); eauto | now split].
  - intros n B. simpl in B. change (get σ (LFresh n) = None). apply U. lia.
  - intros y l. unfold update. destruct (Nat.eqb y x).
    + intros [= <-]. simpl. lia.
    + intros E. apply L in E. destruct l; simpl in *; auto.
  - intros x l E. apply callenv_range in E as (y & E). eauto.
Qed.

(** All names of a call are bound. *)
Definition closed (σ : store T) (ρ : locs) : Prop := forall x l, ρ x = Some l -> get σ l <> None.

Theorem closed_unchanged R p t σ ρ o τ l :
  closed σ ρ -> evaluates R ρ p t σ o -> In τ o -> allocated σ l -> get τ l = get σ l.
Proof.
  intros C H I A. pose proof (proj1 evaluates_follows _ _ _ _ _ _ H τ I) as F.
  destruct (get σ l) as [v |] eqn:G; [now apply F |].
  rewrite <- G. apply F; auto. intros x E. now apply C in E.
Qed.

(** So what comes after such a call does the same after each of its answers: if it fails after one, it
    fails after all, and the other ways to match the call need not be tried. *)
Theorem closed_choices R p t σ ρ o τ τ' R' ρ' q u a :
  closed σ ρ -> located σ ρ -> located σ ρ' ->
  evaluates R ρ p t σ o -> In τ o -> In τ' o ->
  evaluates R' ρ' q u τ a ->
  exists a', evaluates R' ρ' q u τ' a' /\
    Forall2 (fun υ υ' => forall x, (get υ ∘ ρ') x = (get υ' ∘ ρ') x) a a'.
Proof.
  intros C L L' H I I' E.
  pose proof (proj1 evaluates_follows _ _ _ _ _ _ H τ I) as F.
  pose proof (proj1 evaluates_follows _ _ _ _ _ _ H τ' I') as F'.
  assert (At : forall υ, follows ρ σ υ -> located υ ρ').
  { intros υ Fυ. split; [apply Fυ; auto; apply L |]. intros x l Ex.
    eapply allocated_mono; [apply Fυ |]. now apply L' in Ex. }
  apply alike_calls with (4 := E); auto. split.
  - tauto.
  - intros x. unfold compose. destruct (ρ' x) as [l |] eqn:Ex; auto.
    apply L' in Ex. rewrite (closed_unchanged _ _ _ _ _ _ τ l C H I Ex).
    now rewrite (closed_unchanged _ _ _ _ _ _ τ' l C H I' Ex).
  - tauto.
Qed.
End Tabling.
