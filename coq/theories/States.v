(** * States: the items that a subject satisfies, as the index computes them

    Items are numbered in a table.  The state of a subject follows from its operator, the facts about
    it and the states of its children: the operator items that it satisfies, closed upwards by a
    worklist.  A state has the number of every item that its subject satisfies ([states_admit]); with
    [items_admit], a pattern whose item is not in the state does not match. *)

From Coq Require Import List Bool PeanoNat Lia.
Import ListNotations.
From PyPM Require Import Names Values Terms Guards Patterns Declarative Items.

Section States.
Context {Δ : Domain}.

Inductive entry : Type :=
| EAnything
| EApplied (f : option op) (ns : list nat)
| EFact (x : name) (g : guard)
| EEither (ns : list nat)
| EBoth (m n : nat)
| ERecursion (n : nat).

Variable table : list entry.

Definition all_numbers : list nat := seq 0 (length table).

(** The items that hold of a subject once [n] does, as choices, as recursions, or in part. *)
Definition is_above (n m : nat) : bool :=
  match nth_error table m with
  | Some (EEither ns) => mem n ns
  | Some (EBoth a b) => Nat.eqb n a || Nat.eqb n b
  | Some (ERecursion k) => Nat.eqb n k
  | _ => false
  end.

Definition above (n : nat) : list nat := filter (is_above n) all_numbers.

(** A conjunction waits for both of its parts. *)
Definition ready (n : nat) (s : list nat) : bool :=
  match nth_error table n with
  | Some (EBoth a b) => mem a s && mem b s
  | _ => true
  end.

(** The worklist: [s] is satisfied, [todo] are to be looked at. *)
Fixpoint close (fuel : nat) (todo s : list nat) : option (list nat) :=
  match fuel, todo with
  | _, [] => Some s
  | 0, _ => None
  | S fuel, n :: todo =>
      if negb (mem n s) && ready n s then close fuel (above n ++ todo) (n :: s)
      else close fuel todo s
  end.

Context {T : Type} {Σ : Structure T}.

Fixpoint children_have (ns : list nat) (ss : list (list nat)) : bool :=
  match ns, ss with
  | [], [] => true
  | n :: ns, s :: ss => mem n s && children_have ns ss
  | _, _ => false
  end.

Definition holds (x : name) (g : guard) (t : T) : bool :=
  match geval (alone x t) g with Some true => true | _ => false end.

(** Where the worklist begins: all that follows from the children and the facts alone. *)
Definition begins (t : T) (f : op) (ss : list (list nat)) (n : nat) : bool :=
  match nth_error table n with
  | Some EAnything => true
  | Some (EApplied o ns) => may_call f o && children_have ns ss
  | Some (EFact x g) => holds x g t
  | _ => false
  end.

Inductive state_of : T -> list nat -> Prop :=
| state_node t f ts ss fuel s :
    dest t = (f, ts) -> Forall2 state_of ts ss ->
    close fuel (filter (begins t f ss) all_numbers) [] = Some s ->
    state_of t s.

(** ** The worklist closes *)

Lemma in_all_numbers n : In n all_numbers <-> n < length table.
Proof. unfold all_numbers. rewrite in_seq. lia. Qed.

Lemma above_spec n m : In m (above n) <-> is_above n m = true.
Proof.
  unfold above. rewrite filter_In, in_all_numbers. split; [tauto |]. intros A. split; auto.
  apply nth_error_Some. intros E. unfold is_above in A. now rewrite E in A.
Qed.

(** All that is above what is satisfied is satisfied, or is to be looked at, or waits. *)
Definition pending (todo s : list nat) : Prop :=
  forall n m, In n s -> is_above n m = true -> In m s \/ In m todo \/ ready m s = false.

Lemma ready_mono n s m : ready n (m :: s) = false -> ready n s = false.
Proof.
  unfold ready. destruct (nth_error table n) as [[| | | | a b |] |]; auto.
  rewrite !andb_false_iff. intros [H | H]; [left | right].
  - apply not_true_is_false. intros I. apply not_true_iff_false in H. apply H.
    apply mem_spec. right. now apply mem_spec.
  - apply not_true_is_false. intros I. apply not_true_iff_false in H. apply H.
    apply mem_spec. right. now apply mem_spec.
Qed.

Lemma close_spec fuel : forall todo s s',
  close fuel todo s = Some s' -> pending todo s ->
  incl s s' /\ pending [] s' /\ forall n, In n todo -> In n s' \/ ready n s' = false.
Proof.
  assert (Done : forall s s' : list nat, Some s = Some s' -> pending [] s ->
    incl s s' /\ pending [] s' /\ forall n, In n [] -> In n s' \/ ready n s' = false).
  { intros s s' [= <-] P. repeat split; auto using incl_refl. intros n []. }
  induction fuel as [| fuel IH]; intros [| n todo] s s' E P; simpl in E; auto; [discriminate |].
  destruct (negb (mem n s) && ready n s) eqn:Q.
  - apply IH in E as (I & P' & A).
    + split; [intros k K; apply I; now right |]. split; auto.
      intros k [<- | K]; [left; apply I; now left |]. apply A, in_or_app. now right.
    + intros k m [<- | K] U.
      * right. left. apply in_or_app. left. now apply above_spec.
      * destruct (P k m K U) as [H | [[<- | H] | H]].
        -- left. now right.
        -- left. now left.
        -- right. left. apply in_or_app. now right.
        -- destruct (ready m (n :: s)) eqn:R; [| auto].
           right. left. apply in_or_app. left. apply above_spec.
           unfold is_above, ready in *. destruct (nth_error table m) as [[| | | | a b |] |];
             try discriminate.
           apply andb_prop in R as [Ra Rb]. apply mem_spec in Ra, Rb. simpl in Ra, Rb.
           apply orb_true_iff. rewrite !Nat.eqb_eq.
           destruct Ra as [-> | Ra]; [now left |]. destruct Rb as [-> | Rb]; [now right |].
           apply mem_spec in Ra, Rb. now rewrite Ra, Rb in H.
  - apply IH in E as (I & P' & A).
    + split; auto. split; auto. intros k [<- | K]; [| now apply A].
      apply andb_false_iff in Q as [Q | Q].
      * left. apply I. apply negb_false_iff in Q. now apply mem_spec.
      * destruct (ready n s') eqn:R; auto. left.
        unfold ready in R, Q. destruct (nth_error table n) as [[| | | | a b |] |] eqn:En;
          try discriminate.
        apply andb_prop in R as [Ra Rb]. apply mem_spec in Ra.
        assert (U : is_above a n = true) by (unfold is_above; now rewrite En, Nat.eqb_refl).
        destruct (P' a n Ra U) as [H | [[] | H]]; auto. unfold ready in H. rewrite En in H.
        apply mem_spec in Ra. now rewrite Ra, Rb in H.
    + intros k m K U. destruct (P k m K U) as [H | [[<- | H] | H]]; auto.
      apply andb_false_iff in Q as [Q | Q]; auto. left. apply negb_false_iff in Q.
      now apply mem_spec.
Qed.

(** A state has what follows from the children, and all that is above what it has. *)
Lemma state_begins t s f ts :
  state_of t s -> dest t = (f, ts) ->
  exists ss, Forall2 state_of ts ss /\ forall n, begins t f ss n = true -> In n s.
Proof.
  intros H D. inversion H as [? f' ts' ss fuel ? D' F C]; subst.
  assert (E : (f', ts') = (f, ts)) by congruence. injection E as -> ->.
  exists ss. split; auto. intros n B.
  apply close_spec in C as (_ & _ & A); [| intros k m []].
  assert (I : In n (filter (begins t f ss) all_numbers)).
  { apply filter_In. split; auto. apply in_all_numbers, nth_error_Some. intros E.
    unfold begins in B. now rewrite E in B. }
  destruct (A n I) as [H' | R]; auto. unfold begins, ready in *.
  destruct (nth_error table n) as [[| | | | a b |] |]; discriminate.
Qed.

Lemma state_closed t s n m :
  state_of t s -> In n s -> is_above n m = true -> ready m s = true -> In m s.
Proof.
  intros H I U R. inversion H as [? f ts ss fuel ? D F C]; subst.
  apply close_spec in C as (_ & P & _); [| intros k j []].
  destruct (P n m I U) as [J | [[] | J]]; congruence.
Qed.

(** ** Every subject has a state *)

Definition left_of (s l : list nat) : nat := length (filter (fun n => negb (mem n s)) l).

Lemma left_of_cons (n : nat) (s : list nat) m l :
  left_of (n :: s) (m :: l) =
  (if Nat.eqb m n then 0 else if mem m s then 0 else 1) + left_of (n :: s) l.
Proof.
  unfold left_of. cbn [filter]. change (mem m (n :: s)) with (Nat.eqb m n || mem m s).
  destruct (Nat.eqb m n), (mem m s); reflexivity.
Qed.

Lemma left_of_cons' s m l : left_of s (m :: l) = (if mem m s then 0 else 1) + left_of s l.
Proof. unfold left_of. cbn [filter]. destruct (mem m s); reflexivity. Qed.

Lemma fewer_left (n : nat) (s l : list nat) : In n l -> negb (mem n s) = true -> left_of (n :: s) l < left_of s l.
Proof.
  intros I Q. apply negb_true_iff in Q.
  assert (Le : forall l, left_of (n :: s) l <= left_of s l).
  { clear. induction l as [| m l IH]; auto. rewrite left_of_cons, left_of_cons'.
    destruct (Nat.eqb m n), (mem m s); lia. }
  induction l as [| m l IH]; [destruct I |]. rewrite left_of_cons, left_of_cons'.
  destruct I as [-> | I].
  - specialize (Le l). rewrite Nat.eqb_refl, Q. lia.
  - apply IH in I. clear IH. destruct (Nat.eqb m n), (mem m s); lia.
Qed.

Lemma close_enough : forall k s todo,
  left_of s all_numbers <= k ->
  (forall n, In n todo -> In n all_numbers) ->
  exists fuel s', close fuel todo s = Some s'.
Proof.
  assert (Skip : forall todo s n, (exists fuel s', close fuel todo s = Some s') ->
    negb (mem n s) && ready n s = false -> exists fuel s', close fuel (n :: todo) s = Some s').
  { intros todo s n (fuel & s' & E) Q. exists (S fuel), s'. simpl. now rewrite Q. }
  induction k as [| k IH]; intros s todo L A.
  - induction todo as [| n todo IHt]; [now exists 0, s |].
    apply Skip; [apply IHt; intros; apply A; now right |].
    destruct (mem n s) eqn:M; [reflexivity |]. exfalso.
    assert (I : In n (filter (fun n => negb (mem n s)) all_numbers)).
    { apply filter_In. rewrite M. split; auto. apply A. now left. }
    unfold left_of in L. destruct (filter _ _); [destruct I | simpl in L; lia].
  - induction todo as [| n todo IHt]; [now exists 0, s |].
    destruct (negb (mem n s) && ready n s) eqn:Q.
    + destruct (IH (n :: s) (above n ++ todo)) as (fuel & s' & E).
      * apply andb_prop in Q as [Q _].
        pose proof (fewer_left n s all_numbers (A n (or_introl eq_refl)) Q). lia.
      * intros m I. apply in_app_or in I as [I | I]; [| apply A; now right].
        unfold above in I. now apply filter_In in I.
      * exists (S fuel), s'. simpl. now rewrite Q.
    + apply Skip; auto. apply IHt. intros; apply A; now right.
Qed.

Theorem state_exists {Z : Sized T} t : exists s, state_of t s.
Proof.
  assert (H : forall k t, size t < k -> exists s, state_of t s).
  { induction k as [| k IH]; intros u L; [lia |]. destruct (dest u) as [f ts] eqn:D.
    assert (C : exists ss, Forall2 state_of ts ss).
    { assert (S : forall v, In v ts -> size v < k).
      { intros v I. pose proof (size_child u f ts v D I). lia. }
      clear D. induction ts as [| v ts IHts]; [now exists [] |].
      destruct (IH v (S v (or_introl eq_refl))) as [s Hs].
      destruct IHts as [ss Hss]; [intros; apply S; now right |]. exists (s :: ss). auto. }
    destruct C as [ss F].
    destruct (close_enough _ [] (filter (begins u f ss) all_numbers) (le_n _)) as (fuel & s & E).
    { intros n I. now apply filter_In in I. }
    exists s. econstructor; eauto. }
  apply (H (S (size t))). lia.
Qed.

(** ** A state has every item that its subject satisfies *)

Variable reads : guard -> bool.
Variable versions : recursion -> expected -> bool.
#[local] Notation satisfies := (satisfies reads versions).
#[local] Notation item_of := (item_of reads versions).

(** [stands n i]: the number [n] stands for the item [i], in a table that has simplified choices of one
    item, choices with [Anything], and conjunctions with it. *)
Section Numbers.
Variable stands : nat -> item -> Prop.

Definition covers (n m : nat) : Prop :=
  nth_error table m = Some EAnything \/ m = n \/
  (is_above n m = true /\ forall a b, nth_error table m <> Some (EBoth a b)).

(** Whatever satisfies [i] has [n] in its state; nested choices are one. *)
Inductive within : item -> nat -> Prop :=
| W_stands m i n : stands m i -> covers m n -> within i n
| W_either i j n : within i n -> within j n -> within (Either i j) n.

Definition represented (n : nat) (i : item) : Prop :=
  match i with
  | Anything => nth_error table n = Some EAnything
  | Nothing | Body [] _ => True
  | Applied o js => exists ns, nth_error table n = Some (EApplied o ns) /\ Forall2 stands ns js
  | Fact x g =>
      exists y h, nth_error table n = Some (EFact y h) /\
        forall t : T, holds x g t = true -> holds y h t = true
  | Either i j => within i n /\ within j n
  | Both i j =>
      exists a b, stands a i /\ stands b j /\
        (n = a \/ n = b \/ nth_error table n = Some (EBoth a b) \/
         nth_error table n = Some (EBoth b a))
  | Body (d :: R) E => within (item_of (d :: R) E (d_body d)) n
  end.

Hypothesis stands_for : forall n i, stands n i -> represented n i.

Lemma anything_in t s n : state_of t s -> nth_error table n = Some EAnything -> In n s.
Proof.
  intros H E. destruct (dest t) as [f ts] eqn:D.
  destruct (state_begins _ _ _ _ H D) as (ss & _ & A). apply A. unfold begins. now rewrite E.
Qed.

Lemma covers_in t s n m : state_of t s -> covers n m -> In n s -> In m s.
Proof.
  intros H [E | [-> | [U N]]] I; auto; [eapply anything_in; eauto |].
  eapply state_closed; eauto. unfold ready.
  destruct (nth_error table m) as [[| | | | a b |] |] eqn:E; auto. now destruct (N a b).
Qed.

Lemma conjunction_in t s n a b :
  state_of t s -> nth_error table n = Some (EBoth a b) -> In a s -> In b s -> In n s.
Proof.
  intros H E Ia Ib. apply (state_closed t s a); auto.
  - unfold is_above. now rewrite E, Nat.eqb_refl.
  - unfold ready. rewrite E. apply mem_spec in Ia, Ib. now rewrite Ia, Ib.
Qed.

Lemma within_in t i :
  (forall s m, state_of t s -> stands m i -> In m s) ->
  (forall i1 i2 n s, i = Either i1 i2 -> state_of t s -> within i1 n -> within i2 n -> In n s) ->
  forall s n, state_of t s -> within i n -> In n s.
Proof.
  intros Hs He s n H W. inversion W as [m ? ? St C | i1 i2 ? W1 W2]; subst.
  - eapply covers_in; eauto.
  - eapply He; eauto.
Qed.

Lemma states_satisfied :
  (forall t i, satisfies t i -> forall s n, state_of t s -> within i n -> In n s) /\
  (forall ts js, satisfy reads versions ts js -> forall ss ns,
     Forall2 state_of ts ss -> Forall2 stands ns js -> children_have ns ss = true).
Proof.
  apply (satisfies_mutind reads versions
    (fun t i _ => forall s n, state_of t s -> within i n -> In n s)
    (fun ts js _ => forall ss ns,
       Forall2 state_of ts ss -> Forall2 stands ns js -> children_have ns ss = true)).
  - (* anything *) intros t. apply within_in; [| discriminate]. intros s m H S.
    eapply anything_in; eauto. exact (stands_for _ _ S).
  - (* applied *) intros t f ts o js D M _ IH. apply within_in; [| discriminate]. intros s m H S.
    destruct (stands_for _ _ S) as (ns & E & F).
    destruct (state_begins _ _ _ _ H D) as (ss & Fs & A). apply A.
    unfold begins. rewrite E, M. simpl. now apply IH.
  - (* fact *) intros t x g G. apply within_in; [| discriminate]. intros s m H S.
    destruct (stands_for _ _ S) as (y & h & E & Imp). destruct (dest t) as [f ts] eqn:D.
    destruct (state_begins _ _ _ _ H D) as (ss & _ & A). apply A. unfold begins. rewrite E.
    apply Imp. unfold holds. now rewrite G.
  - (* left *) intros t i j _ IH. apply within_in.
    + intros s m H S. destruct (stands_for _ _ S) as [W _]. eauto.
    + intros i1 i2 n s [= -> ->] H W1 W2. eauto.
  - (* right *) intros t i j _ IH. apply within_in.
    + intros s m H S. destruct (stands_for _ _ S) as [_ W]. eauto.
    + intros i1 i2 n s [= -> ->] H W1 W2. eauto.
  - (* both *) intros t i j _ IHi _ IHj. apply within_in; [| discriminate]. intros s m H S.
    destruct (stands_for _ _ S) as (a & b & Sa & Sb & C).
    assert (Ia : In a s) by (apply IHi; auto; eapply W_stands; [exact Sa | right; now left]).
    assert (Ib : In b s) by (apply IHj; auto; eapply W_stands; [exact Sb | right; now left]).
    destruct C as [-> | [-> | [E | E]]]; auto; eapply conjunction_in; eauto.
  - (* body *) intros t d R E _ IH. apply within_in; [| discriminate]. intros s m H S.
    apply IH; auto. exact (stands_for _ _ S).
  - (* no children *) intros ss ns F1 F2. inversion F1. inversion F2. reflexivity.
  - (* children *) intros t ts j js _ IHt _ IHts ss ns F1 F2.
    inversion F1; subst. inversion F2; subst. simpl. apply andb_true_intro. split; auto.
    apply mem_spec. apply IHt; auto. eapply W_stands; eauto. right. now left.
Qed.

Theorem states_admit R p θ t E s n :
  R ⊢ p @ θ ≈ t -> as_expected reads versions E θ ->
  state_of t s -> stands n (item_of R E p) -> In n s.
Proof.
  intros M A H S. apply (proj1 states_satisfied t (item_of R E p)); auto.
  - now apply items_admit with θ.
  - eapply W_stands; eauto. right. now left.
Qed.
End Numbers.
End States.
