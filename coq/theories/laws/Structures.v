(** * Structures in which equations of tensors are interpreted

    Commutative rings that contain the rational numbers, with an exponential and powers with rational
    exponents, as the real numbers have them ([OnReals]).  A power is used only where it is defined:
    an inverse of what is not zero, a root of what is not negative. *)

From Coq Require Import List Bool ZArith QArith Qpower Ring Ring_theory Lia.
Import ListNotations.

(** ** Whole numbers among the rational ones *)

Definition whole (q : Q) : bool := Pos.eqb (Qden (Qred q)) 1.
Definition whole_of (q : Q) : Z := Qnum (Qred q).

Lemma Qred_whole z : Qred (z # 1) = z # 1.
Proof.
  unfold Qred. pose proof (Z.ggcd_gcd z 1) as G. pose proof (Z.ggcd_correct_divisors z 1) as D.
  destruct (Z.ggcd z 1) as [g [a b]]. simpl in *. rewrite Z.gcd_1_r in G. subst g.
  destruct D as [-> D]. rewrite Z.mul_1_l in D. subst b. now destruct a.
Qed.
Lemma whole_spec q : whole q = true <-> exists z, q == inject_Z z.
Proof.
  unfold whole. rewrite Pos.eqb_eq. split.
  - intros E. exists (Qnum (Qred q)). rewrite <- (Qred_correct q) at 1. destruct (Qred q). simpl in *.
    now subst.
  - intros [z E]. rewrite (Qred_complete _ _ E). unfold inject_Z.
    now rewrite Qred_whole.
Qed.
Lemma whole_of_spec q : whole q = true -> q == inject_Z (whole_of q).
Proof.
  unfold whole, whole_of. rewrite Pos.eqb_eq. intros E.
  rewrite <- (Qred_correct q) at 1. destruct (Qred q). simpl in *. now subst.
Qed.
Lemma whole_eq a b : a == b -> whole a = whole b.
Proof. unfold whole. intros E. now rewrite (Qred_complete _ _ E). Qed.
Lemma whole_plus a b : whole a = true -> whole b = true -> whole (a + b) = true.
Proof.
  rewrite !whole_spec. intros [x X] [y Y]. exists (x + y)%Z. now rewrite X, Y, inject_Z_plus.
Qed.
Lemma whole_mult a b : whole a = true -> whole b = true -> whole (a * b) = true.
Proof.
  rewrite !whole_spec. intros [x X] [y Y]. exists (x * y)%Z. now rewrite X, Y, inject_Z_mult.
Qed.
Lemma whole_opp a : whole a = true -> whole (- a) = true.
Proof. rewrite !whole_spec. intros [x X]. exists (- x)%Z. now rewrite X, inject_Z_opp. Qed.
Lemma whole_inject z : whole (inject_Z z) = true.
Proof. apply whole_spec. now exists z. Qed.
Lemma not_whole_plus a b : whole (a + b) = false -> whole a = false \/ whole b = false.
Proof.
  destruct (whole a) eqn:A; auto. destruct (whole b) eqn:B; auto. now rewrite whole_plus.
Qed.

(** ** Structures *)

(** Functions of which something is known, by their numbers: whether a value is above zero; whether it is
    zero; the logarithm; the greater of two values; those that change sign with their argument, such as
    [sin]; those that do not, such as [cos]. *)
Definition truth (f : Z) : bool := Z.eqb f 0 || Z.eqb f 1.
Definition log : Z := 2.
Definition greater : Z := 3.
Definition odd (f : Z) : bool := Z.leb 4 f && Z.ltb f 10.
Definition symmetric (f : Z) : bool := Z.leb 10 f && Z.ltb f 12.
(** Rounding to whole numbers, which changes sign as well; rounding to the numbers of a type: *)
Definition rounding : Z := 8.
Definition settling (f : Z) : bool := Z.ltb f 0.

Record structure : Type := {
  F :> Type;
  zero : F; one : F;
  add : F -> F -> F; mul : F -> F -> F; sub : F -> F -> F; opp : F -> F;
  num : Q -> F;                          (** rational numbers *)
  pw : F -> Q -> F;                      (** powers *)
  exp : F -> F;
  nn : F -> Prop;                        (** not negative *)
  count : F -> nat;                      (** a size as a number of indices *)
  greatest : nat -> (nat -> F) -> F;     (** of the values below an index *)
  fn : Z -> list F -> F;                 (** other functions, by names *)

  (** A power is defined: *)
  ok (x : F) (q : Q) : Prop := (q < 0 -> x <> zero) /\ (whole q = false -> nn x);

  ring_laws : ring_theory zero one add mul sub opp (@eq F);
  one_zero : one <> zero;
  num_eq : forall a b, a == b -> num a = num b;
  num_1 : num 1 = one;
  num_plus : forall a b, num (a + b) = add (num a) (num b);
  num_mult : forall a b, num (a * b) = mul (num a) (num b);
  num_nn : forall a, 0 <= a -> nn (num a);

  pw_eq : forall x a b, a == b -> pw x a = pw x b;
  pw_0 : forall x, pw x 0 = one;
  pw_1 : forall x, pw x 1 = x;
  pw_zero : forall q, 0 < q -> pw zero q = zero;
  pw_plus : forall x a b, ok x a -> ok x b -> pw x (a + b) = mul (pw x a) (pw x b);
  pw_mul : forall x y q, ok x q -> ok y q -> pw (mul x y) q = mul (pw x q) (pw y q);
  pw_pw : forall x a b, ok x a -> ok (pw x a) b -> (whole b = true \/ nn x) ->
    pw (pw x a) b = pw x (a * b);
  pw_nn : forall x q, ok x q -> nn x -> nn (pw x q);

  nn_add : forall x y, nn x -> nn y -> nn (add x y);
  nn_mul : forall x y, nn x -> nn y -> nn (mul x y);
  nn_square : forall x, nn (mul x x);
  nn_zero : forall x y, nn x -> nn y -> add x y = zero -> x = zero;

  exp_add : forall x y, exp (add x y) = mul (exp x) (exp y);
  exp_pw : forall x q, pw (exp x) q = exp (mul (num q) x);
  exp_nn : forall x, nn (exp x);

  fn_truth : forall f xs, truth f = true -> fn f xs = zero \/ fn f xs = one;
  fn_positive : forall x, nn x -> x <> zero -> fn 0 [x] = one;
  fn_not_positive : forall x, nn x -> fn 0 [opp x] = zero;
  fn_scaled : forall k x, 0 < k -> fn 0 [mul (num k) x] = fn 0 [x];
  fn_zero : forall x, x <> zero -> fn 1 [x] = zero;
  fn_of_zero : fn 1 [zero] = one;
  fn_one : forall x, fn 1 [x] = one -> x = zero;
  fn_odd : forall f x, odd f = true -> fn f [opp x] = opp (fn f [x]);
  fn_symmetric : forall f x, symmetric f = true -> fn f [opp x] = fn f [x];
  log_mul : forall x y, nn x -> x <> zero -> nn y -> y <> zero ->
    fn log [mul x y] = add (fn log [x]) (fn log [y]);
  log_pw : forall x q, nn x -> x <> zero -> fn log [pw x q] = mul (num q) (fn log [x]);
  log_exp : forall x, fn log [exp x] = x;
  exp_log : forall x, nn x -> x <> zero -> exp (fn log [x]) = x;
  greater_swap : forall x y, fn greater [x; y] = fn greater [y; x];
  greater_joined : forall x y z, fn greater [fn greater [x; y]; z] = fn greater [x; fn greater [y; z]];
  greater_above : forall x y, nn (sub y x) -> fn greater [x; y] = y;
  greater_least : forall x y, nn (sub (fn greater [x; y]) x);
  greater_lesser : forall x y z, fn greater [opp (fn greater [x; y]); z] =
    opp (fn greater [opp (fn greater [opp x; z]); opp (fn greater [opp y; z])]);
  greater_scaled : forall k x y, nn k -> fn greater [mul k x; mul k y] = mul k (fn greater [x; y]);
  rounding_is : forall x, exists z, fn rounding [x] = num (inject_Z z);
  rounding_whole : forall z, fn rounding [num (inject_Z z)] = num (inject_Z z);
  rounding_greater : forall x y,
    fn rounding [fn greater [x; y]] = fn greater [fn rounding [x]; fn rounding [y]];

  fn_settled : forall f x, settling f = true -> fn f [fn f [x]] = fn f [x];

  greatest_ext : forall n f g, (forall i, (i < n)%nat -> f i = g i) -> greatest n f = greatest n g;
  greatest_constant : forall n x, (0 < n)%nat -> greatest n (fun _ => x) = x;
  greatest_nn : forall n f, (0 < n)%nat -> (forall i, (i < n)%nat -> nn (f i)) -> nn (greatest n f)
}.
Arguments zero {_}. Arguments one {_}. Arguments add {_}. Arguments mul {_}. Arguments sub {_}.
Arguments opp {_}. Arguments num {_}. Arguments pw {_}. Arguments exp {_}. Arguments nn {_}.
Arguments count {_}. Arguments greatest {_}. Arguments fn {_}. Arguments ok {_}.

(** ** What follows at once *)

Section Laws.
Context {A : structure}.
Add Ring A_ring : (ring_laws A).
Implicit Types x y : A.

Lemma num_0 : num 0 = (zero : A).
Proof.
  assert (E : num 0 = add (num 0) (num 0 : A)) by (rewrite <- num_plus; apply num_eq; reflexivity).
  assert (H : num 0 = sub (add (num 0) (num 0)) (num 0 : A)) by ring.
  rewrite H, <- E. ring.
Qed.
Lemma num_opp a : num (- a) = opp (num a : A).
Proof.
  assert (E : add (num a) (num (- a)) = (zero : A)).
  { rewrite <- num_plus, <- num_0. apply num_eq, Qplus_opp_r. }
  transitivity (sub (add (num a) (num (- a))) (num a : A)); [| rewrite E]; ring.
Qed.
Lemma num_not_0 a : ~ a == 0 -> num a <> (zero : A).
Proof.
  intros N E. apply (one_zero A). rewrite <- num_1.
  transitivity (mul (num a) (num (/ a) : A)); [| rewrite E; ring].
  rewrite <- num_mult. apply num_eq. now rewrite Qmult_inv_r.
Qed.

(** *** Powers *)
Lemma ok_eq x a b : a == b -> ok x a -> ok x b.
Proof. intros E [N W]. split; [now rewrite <- E | now rewrite <- (whole_eq _ _ E)]. Qed.
Lemma ok_1 x : ok x 1.
Proof. split; [| discriminate]. intros H. now exfalso. Qed.
Lemma ok_0 x : ok x 0.
Proof. split; [| discriminate]. intros H. now apply Qlt_irrefl in H. Qed.
Lemma ok_whole x q : whole q = true -> 0 <= q -> ok x q.
Proof. intros W P. split; [| congruence]. intros H. now apply (Qlt_not_le _ _ H) in P. Qed.
Lemma ok_whole_apart x q : whole q = true -> x <> zero -> ok x q.
Proof. intros W N. split; auto. congruence. Qed.
Lemma ok_positive x q : nn x -> x <> zero -> ok x q.
Proof. split; auto. Qed.
Lemma Qplus_neg a b : a + b < 0 -> a < 0 \/ b < 0.
Proof.
  intros H. destruct (Qlt_le_dec a 0) as [| A0]; auto. destruct (Qlt_le_dec b 0) as [| B0]; auto.
  exfalso. apply (Qlt_not_le _ _ H). now apply (Qplus_le_compat 0 a 0 b).
Qed.
Lemma ok_plus x a b : ok x a -> ok x b -> ok x (a + b).
Proof.
  intros [N W] [N' W']. split.
  - intros H. destruct (Qplus_neg _ _ H); auto.
  - intros H. destruct (not_whole_plus _ _ H); auto.
Qed.
Lemma ok_minus x a b : ok x a -> ok x b -> b <= a -> ok x (a - b).
Proof.
  intros [N W] [N' W'] L. split.
  - intros H. exfalso. apply (Qlt_not_le _ _ H). now apply (proj1 (Qle_minus_iff b a)).
  - intros H. destruct (not_whole_plus _ _ H) as [E | E]; auto. apply W'.
    destruct (whole b) eqn:B; auto. now rewrite (whole_opp _ B) in E.
Qed.
Lemma pw_minus x a b : ok x a -> ok x b -> b <= a -> pw x a = mul (pw x b) (pw x (a - b)).
Proof.
  intros H K L. rewrite <- pw_plus; auto using ok_minus. apply pw_eq. ring.
Qed.
Lemma pw_inverse x q : ok x q -> ok x (- q) -> mul (pw x q) (pw x (- q)) = one.
Proof.
  intros H K. rewrite <- pw_plus; auto. rewrite <- (pw_0 A x). apply pw_eq. ring.
Qed.
Lemma pw_apart x q : ok x q -> ok x (- q) -> pw x q <> zero.
Proof.
  intros H K E. apply (one_zero A). rewrite <- (pw_inverse x q H K), E. ring.
Qed.
Lemma pw_positive_apart x q : nn x -> x <> zero -> pw x q <> zero.
Proof. intros. apply pw_apart; now apply ok_positive. Qed.
Lemma Qopp_neg q : 0 < q -> - q < 0.
Proof. intros H. apply Qopp_lt_compat in H. exact H. Qed.

Lemma ok_pw x a b : ok x a -> ok (pw x a) b -> (whole b = true \/ nn x) -> ok x (a * b).
Proof.
  intros [N W] [N' W'] O. split.
  - intros H. destruct (Qlt_le_dec a 0) as [| A0]; auto. intros ->.
    destruct (Qeq_dec a 0) as [Z | Z].
    { rewrite Z, Qmult_0_l in H. exact (Qlt_irrefl 0 H). }
    assert (0 < a) by (apply Qle_lteq in A0 as [| E]; [assumption | now symmetry in E]).
    destruct (Qlt_le_dec b 0) as [B0 | B0].
    + apply (N' B0). now apply pw_zero.
    + apply (Qlt_not_le _ _ H). now apply Qmult_le_0_compat.
  - intros H. destruct O as [O | O]; auto. apply W. destruct (whole a) eqn:E; auto.
    now rewrite whole_mult in H.
Qed.

Lemma mul_apart x y : mul x y <> zero -> x <> zero /\ y <> zero.
Proof. intros H. split; intros ->; apply H; ring. Qed.
Lemma nn_divided x y : nn x -> x <> zero -> nn (mul x y) -> nn y.
Proof.
  intros P N H. assert (K : ok x (-(1))) by (now apply ok_positive).
  replace y with (mul (pw x (-(1))) (mul x y)) by
    (transitivity (mul (mul (pw x 1) (pw x (-(1)))) y); [rewrite pw_1; ring |];
     rewrite pw_inverse; [ring | apply ok_1 | exact K]).
  apply nn_mul; auto using pw_nn.
Qed.

Lemma exp_0 : exp zero = (one : A).
Proof. rewrite <- (pw_0 A (exp zero)), exp_pw, num_0. f_equal. ring. Qed.
Lemma exp_apart x : exp x <> zero.
Proof.
  intros E. apply (one_zero A). rewrite <- exp_0. replace zero with (add x (opp x)) by ring.
  rewrite exp_add, E. ring.
Qed.
Lemma exp_ok x q : ok (exp x) q.
Proof. apply ok_positive; [apply exp_nn | apply exp_apart]. Qed.
Lemma num_ok a q : 0 < a -> ok (num a : A) q.
Proof.
  intros P. apply ok_positive; [apply num_nn; now apply Qlt_le_weak |]. apply num_not_0.
  intros E. rewrite E in P. exact (Qlt_irrefl 0 P).
Qed.

(** *** Truth values *)
Lemma truth_square f (xs : list A) : truth f = true -> mul (fn f xs) (fn f xs) = fn f xs.
Proof. intros H. destruct (fn_truth A f xs H) as [-> | ->]; ring. Qed.
Lemma pw_one q : pw one q = (one : A).
Proof. rewrite <- exp_0, exp_pw. f_equal. ring. Qed.

(** *** Positive values *)
Definition above (x : A) : Prop := nn x /\ x <> zero.
Lemma above_mul x y : above x -> above y -> above (mul x y).
Proof.
  intros [P N] [P' N']. split; [now apply nn_mul |]. intros E. apply N'.
  assert (K : mul (pw x (1)) (pw x (-(1))) = one) by (apply pw_inverse; now apply ok_positive).
  rewrite pw_1 in K. transitivity (mul (mul x (pw x (-(1)))) y); [rewrite K; ring |].
  transitivity (mul (mul x y) (pw x (-(1)))); [ring | rewrite E; ring].
Qed.
Lemma above_one : above one.
Proof. split; [rewrite <- num_1; now apply num_nn | apply one_zero]. Qed.
Lemma above_pw x q : above x -> above (pw x q).
Proof.
  intros [P N]. split; [apply pw_nn; auto; now apply ok_positive | now apply pw_positive_apart].
Qed.
Lemma above_ok x q : above x -> ok x q.
Proof. intros [P N]. now apply ok_positive. Qed.
Lemma above_num k : 0 < k -> above (num k).
Proof.
  intros P. split; [now apply num_nn, Qlt_le_weak |]. apply num_not_0. intros E. rewrite E in P.
  exact (Qlt_irrefl 0 P).
Qed.
Lemma above_add x y : above x -> nn y -> above (add x y).
Proof. intros [P N] P'. split; [now apply nn_add |]. intros E. apply N. now apply (nn_zero A x y). Qed.
Lemma above_divided x y : above x -> above (mul x y) -> above y.
Proof.
  intros [P N] [P' N']. split; [now apply (nn_divided x y) | now apply (mul_apart x y)].
Qed.

(** *** Sums *)
Fixpoint sum (n : nat) (f : nat -> A) : A :=
  match n with O => zero | S n => add (sum n f) (f n) end.
Definition at_index (i : nat) : A := num (inject_Z (Z.of_nat i)).

Lemma sum_ext n f g : (forall i, (i < n)%nat -> f i = g i) -> sum n f = sum n g.
Proof. induction n as [| n IH]; simpl; intros H; auto. rewrite IH, H; auto. Qed.
Lemma sum_add n f g : sum n (fun i => add (f i) (g i)) = add (sum n f) (sum n g).
Proof. induction n as [| n IH]; simpl; [ring |]. rewrite IH. ring. Qed.
Lemma sum_mul n c f : sum n (fun i => mul c (f i)) = mul c (sum n f).
Proof. induction n as [| n IH]; simpl; [ring |]. rewrite IH. ring. Qed.
Lemma sum_zero n : sum n (fun _ => zero) = zero.
Proof. induction n as [| n IH]; simpl; auto. rewrite IH. ring. Qed.
Lemma sum_swap n k f : sum n (fun i => sum k (f i)) = sum k (fun j => sum n (fun i => f i j)).
Proof.
  induction n as [| n IH]; simpl; [now rewrite sum_zero |]. rewrite IH. now rewrite <- sum_add.
Qed.
Lemma sum_constant n c : sum n (fun _ => c) = mul (at_index n) c.
Proof.
  unfold at_index. induction n as [| n IH]; [change (inject_Z (Z.of_nat 0)) with 0; rewrite num_0; simpl; ring |].
  simpl sum. rewrite IH. rewrite Nat2Z.inj_succ. unfold Z.succ.
  rewrite inject_Z_plus, num_plus.
  replace (num (inject_Z 1)) with (one : A) by (symmetry; apply num_1). ring.
Qed.
Lemma sum_nn n f : (forall i, (i < n)%nat -> nn (f i)) -> nn (sum n f).
Proof.
  induction n as [| n IH]; simpl; intros H; [change (nn (zero : A)); rewrite <- num_0; apply num_nn, Qle_refl |].
  apply nn_add; auto.
Qed.
Lemma sum_above n f : (0 < n)%nat -> (forall i, (i < n)%nat -> above (f i)) -> above (sum n f).
Proof.
  destruct n as [| n]; [lia |]. intros _ H. simpl.
  replace (add (sum n f) (f n)) with (add (f n) (sum n f)) by ring.
  apply above_add; [auto |]. apply sum_nn. intros i L. apply H. lia.
Qed.
End Laws.
