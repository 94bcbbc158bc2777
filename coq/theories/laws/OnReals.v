(** * The real numbers are a structure

    So what T14 assumes can be met.  This file uses the axioms of Coq's [Reals]; no other file uses it. *)

From Coq Require Import List Bool ZArith QArith Qreals Reals RealField Lia Lra.
Import ListNotations.
From PyPM.laws Require Import Structures Expressions Certificates.
Open Scope R_scope.

Definition power (x : R) (q : Q) : R :=
  if whole q then powerRZ x (whole_of q)
  else if Rlt_dec 0 x then Rpower x (Q2R q) else 0.
Definition defined (x : R) (q : Q) : Prop := ((q < 0)%Q -> x <> 0) /\ (whole q = false -> 0 <= x).

Lemma whole_R q : whole q = true -> Q2R q = IZR (whole_of q).
Proof. intros W. rewrite (Qeq_eqR _ _ (whole_of_spec q W)). unfold Q2R, inject_Z. simpl. lra. Qed.
Lemma power_positive x q : 0 < x -> power x q = Rpower x (Q2R q).
Proof.
  intros P. unfold power. destruct (whole q) eqn:W.
  - now rewrite powerRZ_Rpower, whole_R.
  - now destruct (Rlt_dec 0 x).
Qed.
Lemma power_eq x a b : (a == b)%Q -> power x a = power x b.
Proof.
  intros E. unfold power, whole_of. rewrite (whole_eq _ _ E), (Qred_complete _ _ E), (Qeq_eqR _ _ E). reflexivity.
Qed.
Lemma power_0 x : power x 0 = 1.
Proof. reflexivity. Qed.
Lemma power_1 x : power x 1 = x.
Proof. unfold power. simpl. ring. Qed.
Lemma power_of_zero q : (0 < q)%Q -> power 0 q = 0.
Proof.
  intros P. unfold power. destruct (whole q) eqn:W.
  - assert (H : (0 < whole_of q)%Z).
    { rewrite Zlt_Qlt. now rewrite <- (whole_of_spec q W). }
    destruct (whole_of q) eqn:E; try lia. simpl. apply pow_ne_zero. lia.
  - destruct (Rlt_dec 0 0); lra.
Qed.
Lemma whole_negative x q : x < 0 -> defined x q -> whole q = true.
Proof. intros N [_ H]. destruct (whole q); auto. specialize (H eq_refl). lra. Qed.
Lemma power_whole x z : power x (inject_Z z) = powerRZ x z.
Proof.
  unfold power, whole_of. rewrite whole_inject. unfold inject_Z. now rewrite Qred_whole.
Qed.
Lemma zero_or_positive q : (0 <= q)%Q -> (q == 0)%Q \/ (0 < q)%Q.
Proof. intros H. apply Qle_lteq in H as [H | H]; auto. left. now symmetry. Qed.
Lemma not_below x q : defined x q -> x = 0 -> (0 <= q)%Q.
Proof. intros [N _] ->. apply Qnot_lt_le. intros L. now apply N. Qed.

Lemma power_plus x a b : defined x a -> defined x b -> power x (a + b) = power x a * power x b.
Proof.
  intros A B. destruct (Rtotal_order x 0) as [N | [Z | P]].
  - pose proof (whole_negative x a N A) as Wa. pose proof (whole_negative x b N B) as Wb.
    rewrite (power_eq x (a + b) (inject_Z (whole_of a + whole_of b))).
    + rewrite (power_eq x a _ (whole_of_spec a Wa)), (power_eq x b _ (whole_of_spec b Wb)), !power_whole.
      apply powerRZ_add. lra.
    + rewrite inject_Z_plus, <- (whole_of_spec a Wa), <- (whole_of_spec b Wb). reflexivity.
  - pose proof (not_below x a A Z) as La. pose proof (not_below x b B Z) as Lb. subst x.
    destruct (zero_or_positive a La) as [Ea | Pa]; [| destruct (zero_or_positive b Lb) as [Eb | Pb]].
    + rewrite (power_eq 0 a 0 Ea), power_0, (power_eq 0 (a + b) b); [ring |]. rewrite Ea. ring.
    + rewrite (power_eq 0 b 0 Eb), power_0, (power_eq 0 (a + b) a); [ring |]. rewrite Eb. ring.
    + rewrite !power_of_zero; auto; [ring |]. rewrite <- (Qplus_0_l 0). apply Qplus_lt_le_compat; auto.
  - rewrite !power_positive by assumption. rewrite Q2R_plus. apply Rpower_plus.
Qed.
Lemma power_mul x y q : defined x q -> defined y q -> power (x * y) q = power x q * power y q.
Proof.
  intros [Nx Px] [Ny Py]. destruct (whole q) eqn:W.
  - unfold power. rewrite W. apply powerRZ_mult.
  - specialize (Px eq_refl). specialize (Py eq_refl).
    assert (Zero : x = 0 \/ y = 0 -> power (x * y) q = power x q * power y q).
    { intros H. assert (Q : (0 < q)%Q).
      { assert (L : (0 <= q)%Q) by (apply Qnot_lt_le; intros L; destruct H; [now apply Nx | now apply Ny]).
        destruct (zero_or_positive q L) as [E |]; auto. rewrite (whole_eq _ _ E) in W. discriminate. }
      destruct H as [-> | ->]; [rewrite Rmult_0_l | rewrite Rmult_0_r]; rewrite (power_of_zero q Q); ring. }
    destruct Px as [Px | Px]; [| apply Zero; auto]. destruct Py as [Py | Py]; [| apply Zero; auto].
    rewrite !power_positive by (auto; now apply Rmult_lt_0_compat). symmetry. now apply Rpower_mult_distr.
Qed.

Lemma powerRZ_twice x a b : x <> 0 -> powerRZ (powerRZ x a) b = powerRZ x (a * b).
Proof.
  intros N. assert (H : forall n, powerRZ (powerRZ x a) (Z.of_nat n) = powerRZ x (a * Z.of_nat n)).
  { induction n as [| n IH]; [now rewrite Z.mul_0_r |].
    rewrite Nat2Z.inj_succ, Z.mul_succ_r. unfold Z.succ.
    rewrite !powerRZ_add, IH by auto using powerRZ_NOR. now rewrite powerRZ_1. }
  destruct (Z.le_ge_cases 0 b) as [L | L].
  - rewrite <- (Z2Nat.id b L). apply H.
  - replace b with (- Z.of_nat (Z.to_nat (- b)))%Z by (rewrite Z2Nat.id; lia).
    now rewrite Z.mul_opp_r, !powerRZ_neg', H.
Qed.
Lemma power_power x a b : defined x a -> defined (power x a) b -> whole b = true \/ 0 <= x ->
  power (power x a) b = power x (a * b).
Proof.
  intros A B O. destruct (Rtotal_order x 0) as [N | [Z | P]].
  - pose proof (whole_negative x a N A) as Wa. assert (Wb : whole b = true) by (destruct O; auto; lra).
    rewrite (power_eq x (a * b) (inject_Z (whole_of a * whole_of b))).
    + rewrite (power_eq x a _ (whole_of_spec a Wa)), (power_eq _ b _ (whole_of_spec b Wb)), !power_whole.
      apply powerRZ_twice. lra.
    + rewrite inject_Z_mult, <- (whole_of_spec a Wa), <- (whole_of_spec b Wb). reflexivity.
  - pose proof (not_below x a A Z) as La. subst x. destruct (zero_or_positive a La) as [Ea | Pa].
    + rewrite (power_eq 0 a 0 Ea), power_0, (power_eq 0 (a * b) 0), power_0 by (rewrite Ea; ring).
      rewrite power_positive by lra. unfold Rpower. now rewrite ln_1, Rmult_0_r, Rtrigo_def.exp_0.
    + rewrite (power_of_zero a Pa) in *. pose proof (not_below 0 b B eq_refl) as Lb.
      destruct (zero_or_positive b Lb) as [Eb | Pb].
      * rewrite (power_eq 0 b 0 Eb), (power_eq 0 (a * b) 0) by (rewrite Eb; ring). reflexivity.
      * rewrite !power_of_zero; auto. now apply Qmult_lt_0_compat.
  - rewrite (power_positive x) in * by assumption.
    rewrite (power_positive x), power_positive by (auto; apply exp_pos). rewrite Q2R_mult. apply Rpower_mult.
Qed.
Lemma power_nn x q : defined x q -> 0 <= x -> 0 <= power x q.
Proof.
  intros D [P | <-].
  - rewrite power_positive by assumption. left. apply exp_pos.
  - destruct (zero_or_positive q (not_below 0 q D eq_refl)) as [E | P].
    + rewrite (power_eq 0 q 0 E), power_0. lra.
    + rewrite power_of_zero by assumption. lra.
Qed.

Definition function (other : Z -> list R -> R) (f : Z) (xs : list R) : R :=
  match f, xs with
  | 0%Z, [x] => if Rlt_dec 0 x then 1 else 0
  | 1%Z, [x] => if Req_EM_T x 0 then 1 else 0
  | 2%Z, [x] => ln x
  | 3%Z, [x; y] => Rmax x y
  | 0%Z, _ | 1%Z, _ => 0
  | _, _ => other f xs
  end.
Lemma function_truth other f xs : truth f = true -> function other f xs = 0 \/ function other f xs = 1.
Proof.
  unfold truth. intros H. apply orb_prop in H as [H | H]; apply Z.eqb_eq in H; subst f;
    destruct xs as [| x [| y xs]]; cbn; auto; [destruct (Rlt_dec 0 x) | destruct (Req_EM_T x 0)]; auto.
Qed.
Lemma function_other other f xs : (4 <= f)%Z -> function other f xs = other f xs.
Proof. intros L. destruct f as [| p | p]; try lia. do 2 (destruct p; try reflexivity; try lia). Qed.

(** Rounding gives whole numbers, leaves those as they are, and keeps the order. *)
Record rounds (r : R -> R) : Prop := {
  round_is : forall x, exists z, r x = IZR z;
  round_whole : forall z, r (IZR z) = IZR z;
  round_mono : forall x y, x <= y -> r x <= r y
}.
Lemma Q2R_whole z : Q2R (inject_Z z) = IZR z.
Proof. unfold Q2R, inject_Z. simpl. lra. Qed.

(** For any other functions, odd or symmetric as they should be, and any reduction that reads its elements
    alone, gives the only one of equal elements, and one that is not negative of those that are not: *)
Definition reals (count : R -> nat) (greatest : nat -> (nat -> R) -> R) (other : Z -> list R -> R)
    (is_odd : forall f x, odd f = true -> other f [- x] = - other f [x])
    (is_symmetric : forall f x, symmetric f = true -> other f [- x] = other f [x])
    (is_round : rounds (fun x => other rounding [x]))
    (is_settled : forall f x, settling f = true -> other f [other f [x]] = other f [x])
    (ext : forall n f g, (forall i, (i < n)%nat -> f i = g i) -> greatest n f = greatest n g)
    (constant : forall n x, (0 < n)%nat -> greatest n (fun _ => x) = x)
    (not_negative : forall n f, (0 < n)%nat -> (forall i, (i < n)%nat -> 0 <= f i) -> 0 <= greatest n f) : structure.
Proof.
  refine {|
    F := R; zero := 0; one := 1; add := Rplus; mul := Rmult; sub := Rminus; opp := Ropp; num := Q2R;
    pw := power; exp := Rtrigo_def.exp; nn := fun x => 0 <= x; count := count; greatest := greatest; fn := function other
  |}; fold defined.
  - constructor; intros; ring.
  - lra.
  - intros a b E. now apply Qeq_eqR.
  - unfold Q2R. simpl. lra.
  - apply Q2R_plus.
  - apply Q2R_mult.
  - intros a L. replace 0 with (Q2R 0) by (unfold Q2R; simpl; lra). now apply Qle_Rle.
  - intros x a b. apply power_eq.
  - apply power_0.
  - apply power_1.
  - apply power_of_zero.
  - exact power_plus.
  - exact power_mul.
  - exact power_power.
  - exact power_nn.
  - intros. lra.
  - intros. now apply Rmult_le_pos.
  - intros x. apply Rle_0_sqr.
  - intros x y. lra.
  - apply exp_plus.
  - intros x q. rewrite power_positive by apply exp_pos. unfold Rpower. now rewrite ln_exp.
  - intros x. left. apply exp_pos.
  - exact (function_truth other).
  - intros x X X'. cbn. destruct (Rlt_dec 0 x); lra.
  - intros x X. cbn. destruct (Rlt_dec 0 (- x)); lra.
  - intros k x K. cbn. assert (P : 0 < Q2R k) by (replace 0 with (Q2R 0) by (unfold Q2R; simpl; lra); now apply Qlt_Rlt).
    destruct (Rlt_dec 0 (Q2R k * x)) as [L | L], (Rlt_dec 0 x) as [M | M]; auto; exfalso.
    + apply M. apply (Rmult_lt_reg_l (Q2R k)); lra.
    + apply L. now apply Rmult_lt_0_compat.
  - intros x X. cbn. now destruct (Req_EM_T x 0).
  - cbn. destruct (Req_EM_T 0 0); lra.
  - intros x. cbn. destruct (Req_EM_T x 0); lra.
  - intros f x O. pose proof O as E. unfold odd in E. apply andb_prop in E as [E _]. apply Z.leb_le in E.
    rewrite !function_other by lia. now apply is_odd.
  - intros f x O. pose proof O as E. unfold symmetric in E. apply andb_prop in E as [E _]. apply Z.leb_le in E.
    rewrite !function_other by lia. now apply is_symmetric.
  - intros x y X X' Y Y'. apply ln_mult; lra.
  - intros x q X X'. rewrite power_positive by lra. apply ln_exp.
  - apply ln_exp.
  - intros x X X'. apply exp_ln. lra.
  - apply Rmax_comm.
  - intros x y z. symmetry. apply Rmax_assoc.
  - intros x y L. apply Rmax_right. lra.
  - intros x y. cbn. pose proof (Rmax_l x y). lra.
  - intros x y z. cbn. unfold Rmax. repeat destruct (Rle_dec _ _); lra.
  - intros k x y K. cbn. now apply RmaxRmult.
  - intros x. rewrite function_other by (unfold rounding; lia). destruct (round_is _ is_round x) as [z Z].
    exists z. now rewrite Q2R_whole.
  - intros z. rewrite function_other, Q2R_whole by (unfold rounding; lia). apply (round_whole _ is_round).
  - intros x y. rewrite !function_other by (unfold rounding; lia). cbn. pose proof (round_mono _ is_round) as M.
    destruct (Rle_dec x y) as [L | L].
    + rewrite (Rmax_right x y L). symmetry. now apply Rmax_right, M.
    + assert (G : y <= x) by lra. rewrite (Rmax_left x y G). symmetry. now apply Rmax_left, M.
  - intros f x S. unfold settling in S. apply Z.ltb_lt in S. destruct f; try lia. now apply is_settled.
  - exact ext.
  - exact constant.
  - exact not_negative.
Defined.

(** ** Sizes: every whole number from 1 on is the size of a range *)
Definition floor (x : R) : nat := Z.to_nat (up x - 1).
Lemma floor_whole n : floor (IZR (Z.of_nat n)) = n.
Proof.
  unfold floor. rewrite <- (up_tech (IZR (Z.of_nat n)) (Z.of_nat n)).
  - replace (Z.of_nat n + 1 - 1)%Z with (Z.of_nat n) by lia. apply Nat2Z.id.
  - lra.
  - apply IZR_lt. lia.
Qed.

Section Equations.
Variables (greatest : nat -> (nat -> R) -> R) (other : Z -> list R -> R).
Hypothesis is_odd : forall f x, odd f = true -> other f [- x] = - other f [x].
Hypothesis is_symmetric : forall f x, symmetric f = true -> other f [- x] = other f [x].
Hypothesis is_round : rounds (fun x => other rounding [x]).
Hypothesis is_settled : forall f x, settling f = true -> other f [other f [x]] = other f [x].
Hypothesis ext : forall n f g, (forall i, (i < n)%nat -> f i = g i) -> greatest n f = greatest n g.
Hypothesis constant : forall n x, (0 < n)%nat -> greatest n (fun _ => x) = x.
Hypothesis not_negative : forall n f, (0 < n)%nat -> (forall i, (i < n)%nat -> 0 <= f i) -> 0 <= greatest n f.
Definition real : structure := reals floor greatest other is_odd is_symmetric is_round is_settled ext constant not_negative.

Lemma sizes_sized n : (0 < n)%nat -> sized (A := real) (at_index (A := real) n).
Proof.
  intros P. assert (E : at_index (A := real) n = IZR (Z.of_nat n)).
  { unfold at_index. simpl. unfold Q2R, inject_Z. simpl. lra. }
  assert (C : floor (at_index (A := real) n) = n) by (rewrite E; apply floor_whole).
  change (at_index (A := real) n = at_index (A := real) (floor (at_index (A := real) n)) /\
    (0 < floor (at_index (A := real) n))%nat). now rewrite C.
Qed.

(** T14 over the real numbers *)
Theorem on_reals (Inp : inputs real) I a b :
  accepted a b = true -> def Inp I a -> def Inp I b -> den Inp I a = den Inp I b.
Proof. apply accepted_equal. Qed.
End Equations.
