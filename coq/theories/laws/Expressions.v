(** * Expressions of index notation, and what they denote

    A tensor is read at indices; sizes and indices are numbers like all others; a sum runs over the
    indices below a size.  [def] says where an expression is defined: no inverse of zero, no root of
    what is negative, no sum without an index.  [a ⊑ b]: wherever [a] is defined, [b] is and denotes the same. *)

From Coq Require Import List Bool ZArith QArith Ring Lia.
Import ListNotations.
From PyPM.laws Require Import Structures.

Inductive expr : Type :=
| Num (q : Q)
| Size (s : Z)                    (** a size, a whole number from 1 on *)
| Var (v : Z)                     (** an index *)
| Read (x : Z) (args : expr)      (** an input, at a list of indices *)
| Nil | Cons (a b : expr)         (** lists of arguments *)
| Add (a b : expr) | Mul (a b : expr) | Pow (a : expr) (q : Q) | Exp (a : expr)
| Fn (f : Z) (args : expr)        (** another function *)
| Sum (v : Z) (n a : expr)        (** over the index [v] below [n] *)
| Max (v : Z) (n a : expr)
| Each (v : Z) (n a b : expr).    (** the arguments [a] for each index [v] below [n], before others *)

(** ** An order *)

Notation "c 'andthen' d" := (match c with Eq => d | Lt => Lt | Gt => Gt end)
  (at level 65, right associativity, only parsing).

Definition rank (e : expr) : Z :=
  match e with
  | Num _ => 0 | Size _ => 1 | Var _ => 2 | Read _ _ => 3 | Nil => 4 | Cons _ _ => 5 | Add _ _ => 6
  | Mul _ _ => 7 | Pow _ _ => 8 | Exp _ => 9 | Fn _ _ => 10 | Sum _ _ _ => 11 | Max _ _ _ => 12
  | Each _ _ _ _ => 13
  end.
Definition compare_numbers (p q : Q) : comparison :=
  Z.compare (Qnum p) (Qnum q) andthen Pos.compare (Qden p) (Qden q).

Fixpoint cmp (a b : expr) : comparison :=
  match a, b with
  | Num p, Num q => compare_numbers p q
  | Size s, Size t | Var s, Var t => Z.compare s t
  | Nil, Nil => Eq
  | Read x a, Read y b | Fn x a, Fn y b => Z.compare x y andthen cmp a b
  | Cons a a', Cons b b' | Add a a', Add b b' | Mul a a', Mul b b' => cmp a b andthen cmp a' b'
  | Pow a p, Pow b q => cmp a b andthen compare_numbers p q
  | Exp a, Exp b => cmp a b
  | Sum v n a, Sum u k b | Max v n a, Max u k b => Z.compare v u andthen (cmp n k andthen cmp a b)
  | Each v n a a', Each u k b b' => Z.compare v u andthen (cmp n k andthen (cmp a b andthen cmp a' b'))
  | _, _ => Z.compare (rank a) (rank b)
  end.

Lemma then_eq c d : (c andthen d) = Eq -> c = Eq /\ d = Eq.
Proof. destruct c; now auto. Qed.
Lemma compare_numbers_eq p q : compare_numbers p q = Eq -> p = q.
Proof.
  unfold compare_numbers. intros H. apply then_eq in H as [H K].
  destruct p, q. simpl in *. apply Z.compare_eq in H. apply Pos.compare_eq in K. congruence.
Qed.
Lemma cmp_eq a : forall b, cmp a b = Eq -> a = b.
Proof.
  induction a; intros []; simpl; try discriminate; intros H;
    repeat match goal with
    | H : (_ andthen _) = Eq |- _ => apply then_eq in H as [? H]
    | H : Z.compare _ _ = Eq |- _ => apply Z.compare_eq in H
    | H : compare_numbers _ _ = Eq |- _ => apply compare_numbers_eq in H
    | IH : forall b, cmp ?a b = Eq -> ?a = b, H : cmp ?a _ = Eq |- _ => apply IH in H
    end; congruence.
Qed.
Definition same (a b : expr) : bool := match cmp a b with Eq => true | _ => false end.
Lemma same_eq a b : same a b = true -> a = b.
Proof. unfold same. destruct (cmp a b) eqn:E; [| discriminate..]. intros _. now apply cmp_eq. Qed.

(** ** Indices *)

Fixpoint mem (v : Z) (e : expr) : bool :=
  match e with
  | Num _ | Size _ | Nil => false
  | Var u => Z.eqb v u
  | Read _ a | Pow a _ | Exp a | Fn _ a => mem v a
  | Cons a b | Add a b | Mul a b => mem v a || mem v b
  | Sum u n a | Max u n a => Z.eqb v u || mem v n || mem v a
  | Each u n a b => Z.eqb v u || mem v n || mem v a || mem v b
  end.

Definition swapped (v w u : Z) : Z := if Z.eqb u v then w else if Z.eqb u w then v else u.
Fixpoint swap (v w : Z) (e : expr) : expr :=
  match e with
  | Num _ | Size _ | Nil => e
  | Var u => Var (swapped v w u)
  | Read x a => Read x (swap v w a)
  | Cons a b => Cons (swap v w a) (swap v w b)
  | Add a b => Add (swap v w a) (swap v w b)
  | Mul a b => Mul (swap v w a) (swap v w b)
  | Pow a q => Pow (swap v w a) q
  | Exp a => Exp (swap v w a)
  | Fn f a => Fn f (swap v w a)
  | Sum u n a => Sum (swapped v w u) (swap v w n) (swap v w a)
  | Max u n a => Max (swapped v w u) (swap v w n) (swap v w a)
  | Each u n a b => Each (swapped v w u) (swap v w n) (swap v w a) (swap v w b)
  end.

(** ** Denotation *)

Record inputs (A : structure) : Type := {
  tensor : Z -> list A -> A;
  size : Z -> positive
}.
Arguments tensor {A}. Arguments size {A}.

Section Denotation.
Context {A : structure} (In : inputs A).
Add Ring A_ring : (ring_laws A).

Definition set (I : Z -> A) (v : Z) (x : A) : Z -> A := fun u => if Z.eqb u v then x else I u.

Fixpoint den (I : Z -> A) (e : expr) {struct e} : A :=
  match e with
  | Num q => num q
  | Size s => num (inject_Z (Zpos (size In s)))
  | Var v => I v
  | Read x a => tensor In x (dens I a)
  | Nil | Cons _ _ | Each _ _ _ _ => zero
  | Add a b => add (den I a) (den I b)
  | Mul a b => mul (den I a) (den I b)
  | Pow a q => pw (den I a) q
  | Exp a => exp (den I a)
  | Fn f a => fn f (dens I a)
  | Sum v n a => sum (count (den I n)) (fun i => den (set I v (at_index i)) a)
  | Max v n a => greatest (count (den I n)) (fun i => den (set I v (at_index i)) a)
  end
with dens (I : Z -> A) (e : expr) {struct e} : list A :=
  match e with
  | Cons a b => den I a :: dens I b
  | Each v n a b =>
      flat_map (fun i => dens (set I v (at_index i)) a) (seq 0 (count (den I n))) ++ dens I b
  | _ => []
  end.

(** A function is defined: the logarithm of what is positive. *)
Definition defined (f : Z) (xs : list A) : Prop :=
  match xs with [x] => f = log -> above x | _ => True end.

(** A number is an index. *)
Definition placed (x : A) : Prop := exists i, x = at_index i.
(** A number is the size of a range that has an index. *)
Definition sized (x : A) : Prop := x = at_index (count x) /\ (0 < count x)%nat.

Fixpoint def (I : Z -> A) (e : expr) : Prop :=
  match e with
  | Num _ | Size _ | Nil => True
  | Var v => placed (I v)
  | Read _ a | Exp a => def I a
  | Fn f a => def I a /\ defined f (dens I a)
  | Cons a b | Add a b | Mul a b => def I a /\ def I b
  | Pow a q => def I a /\ ok (den I a) q
  | Sum v n a | Max v n a =>
      def I n /\ sized (den I n) /\
      forall i, (i < count (den I n))%nat -> def (set I v (at_index i)) a
  | Each v n a b =>
      (def I n /\ sized (den I n) /\
      forall i, (i < count (den I n))%nat -> def (set I v (at_index i)) a) /\ def I b
  end.

(** *** Only the indices that occur count. *)
Lemma den_ext e : forall I J, (forall v, mem v e = true -> I v = J v) ->
  den I e = den J e /\ dens I e = dens J e.
Proof.
  induction e; simpl; intros I J H; split; auto;
    repeat match goal with
    | IH : forall I J, _ -> den I ?e = den J ?e /\ _ |- _ =>
        assert (forall I J, (forall u, mem u e = true -> I u = J u) -> den I e = den J e)
          by (intros; now apply IH);
        assert (forall I J, (forall u, mem u e = true -> I u = J u) -> dens I e = dens J e)
          by (intros; now apply IH); clear IH
    end;
    try (f_equal; solve [auto with bool]).
  - apply H. apply Z.eqb_refl.
  - rewrite (H2 I J) by (intros; apply H; rewrite H4; now rewrite orb_true_r).
    apply sum_ext. intros i _. apply H0. intros u U. unfold set. destruct (Z.eqb_spec u v); auto.
    apply H. now rewrite U, orb_true_r.
  - rewrite (H2 I J) by (intros; apply H; rewrite H4; now rewrite orb_true_r).
    apply greatest_ext. intros i _. apply H0. intros u U. unfold set. destruct (Z.eqb_spec u v); auto.
    apply H. now rewrite U, orb_true_r.
  - assert (At : forall u, mem u e1 || mem u e2 || mem u e3 = true -> I u = J u).
    { intros u U. apply H. destruct (mem u e1), (mem u e2), (mem u e3); cbn in U; auto with bool. }
    assert (E : den I e1 = den J e1) by (apply H4; intros u U; apply At; now rewrite U).
    f_equal; [| apply H1; intros u U; apply At; rewrite U; now rewrite orb_true_r].
    rewrite E. apply flat_map_ext. intros i. apply H3. intros u U. unfold set. destruct (Z.eqb_spec u v); auto.
    apply At. rewrite U. now rewrite orb_true_r.
Qed.
Lemma den_same I J e : (forall v, mem v e = true -> I v = J v) -> den I e = den J e.
Proof. intros. now apply den_ext. Qed.
Lemma def_ext e : forall I J, (forall v, mem v e = true -> I v = J v) -> def I e -> def J e.
Proof.
  assert (Range : forall v n a I J, (forall u, mem u n = true -> I u = J u) ->
    (forall u, mem u a = true -> I u = J u) ->
    (forall I J, (forall u, mem u n = true -> I u = J u) -> def I n -> def J n) ->
    (forall I J, (forall u, mem u a = true -> I u = J u) -> def I a -> def J a) ->
    def I n /\ sized (den I n) /\ (forall i, (i < count (den I n))%nat -> def (set I v (at_index i)) a) ->
    def J n /\ sized (den J n) /\ (forall i, (i < count (den J n))%nat -> def (set J v (at_index i)) a)).
  { intros v n a I J Hn Ha Dn Da (D & S & H). rewrite <- (den_same I J n Hn).
    repeat split; try apply S; [now apply (Dn I) |]. intros i L. apply (Da (set I v (at_index i))); auto.
    intros u U. unfold set. destruct (Z.eqb u v); auto. }
  induction e; simpl; intros I J H D; auto; try (now apply (IHe I)).
  - now rewrite <- (H v (Z.eqb_refl v)).
  - destruct D. split; [apply (IHe1 I) | apply (IHe2 I)]; auto with bool.
  - destruct D. split; [apply (IHe1 I) | apply (IHe2 I)]; auto with bool.
  - destruct D. split; [apply (IHe1 I) | apply (IHe2 I)]; auto with bool.
  - destruct D. split; [now apply (IHe I) |]. now rewrite <- (den_same I J).
  - destruct D. split; [now apply (IHe I) |]. now rewrite <- (proj2 (den_ext e I J H)).
  - apply (Range v e1 e2 I); auto; intros u U; apply H; rewrite U; now rewrite ?orb_true_r.
  - apply (Range v e1 e2 I); auto; intros u U; apply H; rewrite U; now rewrite ?orb_true_r.
  - destruct D as [D D']. split; [| apply (IHe3 I); auto; intros u U; apply H; rewrite U; now rewrite ?orb_true_r].
    apply (Range v e1 e2 I); auto; intros u U; apply H; rewrite U; now rewrite ?orb_true_r.
Qed.
Lemma def_same I J e : (forall v, mem v e = true -> I v = J v) -> def I e <-> def J e.
Proof. intros H. split; apply def_ext; auto. intros v M. symmetry. auto. Qed.
Lemma without_set I v x e : mem v e = false -> den (set I v x) e = den I e /\ (def (set I v x) e <-> def I e).
Proof.
  intros M. assert (H : forall u, mem u e = true -> set I v x u = I u).
  { intros u U. unfold set. destruct (Z.eqb_spec u v); congruence. }
  split; [now apply den_same | now apply def_same].
Qed.
Lemma den_without I v x e : mem v e = false -> den (set I v x) e = den I e.
Proof. intros M. now apply without_set. Qed.
Lemma def_without I v x e : mem v e = false -> def (set I v x) e <-> def I e.
Proof. intros M. now apply without_set. Qed.
Lemma set_set I v u x y e : v <> u -> den (set (set I v x) u y) e = den (set (set I u y) v x) e
  /\ (def (set (set I v x) u y) e <-> def (set (set I u y) v x) e).
Proof.
  intros N. assert (H : forall w, mem w e = true -> set (set I v x) u y w = set (set I u y) v x w).
  { intros w _. unfold set. destruct (Z.eqb_spec w u), (Z.eqb_spec w v); congruence. }
  split; [now apply den_same | now apply def_same].
Qed.

(** *** Indices are exchanged. *)
Lemma swapped_swapped v w u : swapped v w (swapped v w u) = u.
Proof.
  unfold swapped. destruct (Z.eqb_spec u v) as [-> |].
  - destruct (Z.eqb_spec w v) as [-> |]; auto. now rewrite Z.eqb_refl.
  - destruct (Z.eqb_spec u w) as [-> |].
    + now rewrite Z.eqb_refl.
    + destruct (Z.eqb_spec u v), (Z.eqb_spec u w); congruence.
Qed.
Lemma set_swapped I v w u x y :
  set I (swapped v w u) x (swapped v w y) = set (fun z => I (swapped v w z)) u x y.
Proof.
  unfold set. destruct (Z.eqb_spec y u) as [-> |]; [now rewrite Z.eqb_refl |].
  destruct (Z.eqb_spec (swapped v w y) (swapped v w u)) as [E |]; auto.
  now apply (f_equal (swapped v w)) in E; rewrite !swapped_swapped in E.
Qed.
Lemma set_swapped_den I v w u x e :
  den (fun y => set I (swapped v w u) x (swapped v w y)) e = den (set (fun z => I (swapped v w z)) u x) e.
Proof. apply den_same. intros. apply set_swapped. Qed.
Lemma den_swap v w e : forall I, den I (swap v w e) = den (fun u => I (swapped v w u)) e
  /\ dens I (swap v w e) = dens (fun u => I (swapped v w u)) e.
Proof.
  induction e; simpl; intros I; split; auto;
    try (now rewrite (proj1 (IHe I))); try (now rewrite (proj2 (IHe I)));
    try (now rewrite (proj1 (IHe1 I)), (proj1 (IHe2 I)));
    try (now rewrite (proj1 (IHe1 I)), (proj2 (IHe2 I))); rewrite (proj1 (IHe1 I)).
  - apply sum_ext. intros i _. now rewrite (proj1 (IHe2 _)), set_swapped_den.
  - apply greatest_ext. intros i _. now rewrite (proj1 (IHe2 _)), set_swapped_den.
  - rewrite (proj2 (IHe3 I)). f_equal. apply flat_map_ext. intros i. rewrite (proj2 (IHe2 _)).
    apply den_ext. intros. apply set_swapped.
Qed.
Lemma def_swap v w e : forall I, def (fun u => I (swapped v w u)) e -> def I (swap v w e).
Proof.
  assert (Range : forall u n a I, (forall I, def (fun u => I (swapped v w u)) n -> def I (swap v w n)) ->
    (forall I, def (fun u => I (swapped v w u)) a -> def I (swap v w a)) ->
    def (fun u => I (swapped v w u)) (Sum u n a) -> def I (Sum (swapped v w u) (swap v w n) (swap v w a))).
  { simpl. intros u n a I Hn Ha (D & S & H). rewrite (proj1 (den_swap v w n I)).
    repeat split; try apply S; auto. intros i L. apply Ha.
    apply (def_same (set (fun u => I (swapped v w u)) u (at_index i))); auto.
    intros y _. symmetry. apply set_swapped. }
  induction e; simpl; intros I D; auto.
  - destruct D; auto.
  - destruct D; auto.
  - destruct D; auto.
  - destruct D; split; auto. now rewrite (proj1 (den_swap v w e I)).
  - destruct D; split; auto. now rewrite (proj2 (den_swap v w e I)).
  - now apply Range.
  - now apply Range.
  - destruct D as [D D']. split; [now apply (Range v0 e1 e2) | now apply IHe3].
Qed.

(** ** Refinement *)
Definition refines (a b : expr) : Prop := forall I, def I a -> def I b /\ den I b = den I a.

Lemma refines_refl a : refines a a.
Proof. intros I. auto. Qed.
Lemma refines_trans a b c : refines a b -> refines b c -> refines a c.
Proof.
  intros H K I D. destruct (H I D) as [D' E]. destruct (K I D') as [D'' E']. split; congruence.
Qed.
Lemma refines_mul a b c d : refines a b -> refines c d -> refines (Mul a c) (Mul b d).
Proof.
  intros H K I [D D']. destruct (H I D) as [? E], (K I D') as [? E']. simpl. rewrite E, E'. auto.
Qed.
Lemma refines_sum v n a b : refines a b -> refines (Sum v n a) (Sum v n b).
Proof.
  intros H I (D & S & K). simpl. repeat split; auto; try apply S.
  - intros i L. now apply H, K.
  - apply sum_ext. intros i L. now apply H, K.
Qed.
Lemma refines_range v n k a : refines n k -> refines (Sum v n a) (Sum v k a) /\ refines (Max v n a) (Max v k a).
Proof.
  intros H. split; intros I (D & S & K); destruct (H I D) as [D' E]; simpl; rewrite E; repeat split; auto; apply S.
Qed.
Lemma refines_max v n a b : refines a b -> refines (Max v n a) (Max v n b).
Proof.
  intros H I (D & S & K). simpl. repeat split; auto; try apply S.
  - intros i L. now apply H, K.
  - apply greatest_ext. intros i L. now apply H, K.
Qed.

(** What does not depend on the index leaves a sum. *)
Lemma sum_out v n a b : mem v a = false -> refines (Sum v n (Mul a b)) (Mul a (Sum v n b)).
Proof.
  intros M I (D & S & K). simpl in *. split.
  - split; [| repeat split; auto; try apply S; intros i L; now apply K].
    destruct S as [_ P]. destruct (K O P) as [Da _]. now apply def_without in Da.
  - rewrite <- sum_mul. apply sum_ext. intros i _. now rewrite (den_without I v _ a).
Qed.
Lemma sum_in v n a b : mem v a = false -> refines (Mul a (Sum v n b)) (Sum v n (Mul a b)).
Proof.
  intros M I (Da & D & S & K). simpl in *. repeat split; auto; try apply S.
  - now apply def_without.
  - rewrite <- sum_mul. apply sum_ext. intros i _. now rewrite (den_without I v _ a).
Qed.
Lemma sum_of_constant v n a : mem v a = false -> refines (Sum v n a) (Mul n a).
Proof.
  intros M I (D & S & K). simpl in *. split.
  - split; auto. destruct S as [_ P]. apply (def_without I v (at_index 0)); auto.
  - destruct S as [E _]. rewrite E at 1. rewrite <- sum_constant. apply sum_ext.
    intros i _. now rewrite (den_without I v _ a).
Qed.
Lemma max_of_constant v n a : mem v a = false -> refines (Max v n a) a.
Proof.
  intros M I (D & [_ P] & K). simpl. split; [now apply (def_without I v (at_index 0)), K |].
  rewrite (greatest_ext A _ _ (fun _ => den I a)); [symmetry; now apply greatest_constant |].
  intros i _. now apply den_without.
Qed.
Lemma sum_exchange v n u k a : v <> u -> mem u n = false -> mem v k = false ->
  refines (Sum v n (Sum u k a)) (Sum u k (Sum v n a)).
Proof.
  intros N Mn Mk I (Dn & Sn & K). simpl in *.
  assert (C : forall i, den (set I v (at_index i)) k = den I k) by (intros; now apply den_without).
  assert (D : forall i, den (set I u (at_index i)) n = den I n) by (intros; now apply den_without).
  destruct (K O (proj2 Sn)) as (Dk & Sk & _). rewrite C in Sk. apply def_without in Dk; auto.
  split.
  - split; [auto | split; [apply Sk |]]. intros j L. rewrite D. split; [now apply def_without | split; [apply Sn |]].
    intros i L'. destruct (K i L') as (_ & _ & H). rewrite C in H. specialize (H j L).
    exact (proj1 (proj2 (set_set I v u _ _ a N)) H).
  - transitivity (sum (count (den I k)) (fun j => sum (count (den I n)) (fun i =>
      den (set (set I v (at_index i)) u (at_index j)) a))).
    + apply sum_ext. intros j _. rewrite D. apply sum_ext. intros i _.
      symmetry. apply (set_set I v u _ _ a N).
    + rewrite <- sum_swap. apply sum_ext. intros i _. now rewrite C.
Qed.
Lemma renamed_env I v w x u : mem w u = false ->
  den (fun y => set I w x (swapped v w y)) u = den (set I v x) u /\
  (def (fun y => set I w x (swapped v w y)) u <-> def (set I v x) u).
Proof.
  intros M. assert (H : forall y, mem y u = true -> set I w x (swapped v w y) = set I v x y).
  { intros y Y. unfold set, swapped. destruct (Z.eqb_spec y v) as [-> | N]; [now rewrite Z.eqb_refl |].
    destruct (Z.eqb_spec y w) as [-> | N']; [congruence |]. destruct (Z.eqb_spec y w); congruence. }
  split; [now apply den_same | now apply def_same].
Qed.
Lemma sum_renamed v w n a : mem w a = false -> refines (Sum v n a) (Sum w n (swap v w a)).
Proof.
  intros M I (D & S & K). simpl in *. split.
  - repeat split; auto; try apply S. intros i L. apply def_swap, renamed_env; auto.
  - apply sum_ext. intros i L. rewrite (proj1 (den_swap v w a _)). now apply renamed_env.
Qed.
Lemma max_renamed v w n a : mem w a = false -> refines (Max v n a) (Max w n (swap v w a)).
Proof.
  intros M I (D & S & K). simpl in *. split.
  - repeat split; auto; try apply S. intros i L. apply def_swap, renamed_env; auto.
  - apply greatest_ext. intros i L. rewrite (proj1 (den_swap v w a _)). now apply renamed_env.
Qed.

(** *** Lists of arguments *)
Definition lists (a b : expr) : Prop := forall I, def I a -> def I b /\ dens I b = dens I a.

Lemma lists_refl a : lists a a.
Proof. intros I. auto. Qed.
Lemma lists_trans a b c : lists a b -> lists b c -> lists a c.
Proof.
  intros H K I D. destruct (H I D) as [D' E]. destruct (K I D') as [D'' E']. split; congruence.
Qed.
Lemma flat_map_seq {X} (f g : nat -> list X) n : (forall i, (i < n)%nat -> f i = g i) ->
  flat_map f (seq 0 n) = flat_map g (seq 0 n).
Proof.
  intros H. assert (K : forall i, List.In i (seq 0 n) -> f i = g i) by (intros i L; apply in_seq in L; apply H; lia).
  induction (seq 0 n) as [| i l IH]; cbn; auto. rewrite K, IH; cbn in *; auto.
Qed.
Lemma lists_each v n k a b c d : refines n k -> lists a b -> lists c d -> lists (Each v n a c) (Each v k b d).
Proof.
  intros H L R I [(D & S & K) D']. destruct (H I D) as [Dk E], (R I D') as [Dd E']. cbn. rewrite E, E'.
  repeat split; auto; try apply S.
  - intros i L'. now apply L, K.
  - f_equal. apply flat_map_seq. intros i L'. now apply L, K.
Qed.
Lemma each_renamed v w n a b : mem w a = false -> lists (Each v n a b) (Each w n (swap v w a) b).
Proof.
  intros M I [(D & S & K) D']. cbn. split.
  - repeat split; auto; try apply S. intros i L. apply def_swap, renamed_env; auto.
  - f_equal. apply flat_map_seq. intros i L. rewrite (proj2 (den_swap v w a _)).
    apply den_ext. intros y Y. unfold set, swapped. destruct (Z.eqb_spec y v) as [-> | N]; [now rewrite Z.eqb_refl |].
    destruct (Z.eqb_spec y w) as [-> |]; [congruence |]. destruct (Z.eqb_spec y w); congruence.
Qed.
End Denotation.
