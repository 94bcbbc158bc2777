(** * Sums of products of powers

    A monomial is a product of powers of expressions, in order, each expression once; a polynomial is a
    sum of monomials with rational coefficients.  Every operation keeps what is denoted, wherever the
    operands are defined. *)

From Coq Require Import List Bool ZArith QArith Qround Qpower Ring Lia.
Import ListNotations.
From PyPM.laws Require Import Structures Expressions.

#[local] Arguments Qred : simpl never.
#[local] Arguments Qfloor : simpl never.
#[local] Arguments Qpower : simpl never.
#[local] Arguments Qplus : simpl never.
#[local] Arguments Qmult : simpl never.

Definition factor : Type := expr * Q.
Definition mono : Type := list factor.
Definition poly : Type := list (Q * mono).

Definition cmp_factor (f g : factor) : comparison :=
  cmp (fst f) (fst g) andthen compare_numbers (snd f) (snd g).
Fixpoint cmp_m (m k : mono) : comparison :=
  match m, k with
  | [], [] => Eq
  | [], _ => Lt
  | _, [] => Gt
  | f :: m, g :: k => cmp_factor f g andthen cmp_m m k
  end.

(** ** Monomials *)

Fixpoint put (e : expr) (q : Q) (m : mono) : mono :=
  match m with
  | [] => [(e, q)]
  | (f, r) :: m' =>
      match cmp e f with
      | Eq => let s := Qred (q + r) in if Qeq_bool s 0 then m' else (f, s) :: m'
      | Lt => (e, q) :: m
      | Gt => (f, r) :: put e q m'
      end
  end.
Definition mmul (m k : mono) : mono := fold_right (fun f => put (fst f) (snd f)) k m.

Definition reify_f (f : factor) : expr := if Qeq_bool (snd f) 1 then fst f else Pow (fst f) (snd f).
Fixpoint reify_m (m : mono) : expr :=
  match m with
  | [] => Num 1
  | [f] => reify_f f
  | f :: m => Mul (reify_f f) (reify_m m)
  end.
Fixpoint factors (e : expr) : mono :=
  match e with
  | Mul a b => factors a ++ factors b
  | Pow a q => [(a, q)]
  | Num q => if Qeq_bool q 1 then [] else [(e, 1)]
  | _ => [(e, 1)]
  end.

(** The whole part of a power of a number goes to the coefficient; a truth value is its own square. *)
Fixpoint tidy (c : Q) (m : mono) : Q * mono :=
  match m with
  | [] => (c, [])
  | (e, q) :: m' =>
      let keep r := let (d, m'') := tidy c m' in (d, (e, r) :: m'') in
      match e with
      | Num k =>
          let w := Qfloor q in
          if Qle_bool k 0 then keep q
          else
            let r := Qred (q - inject_Z w) in
            let (d, m'') := tidy (Qred (c * k ^ w)) m' in
            (d, if Qeq_bool r 0 then m'' else (e, r) :: m'')
      | Fn f _ => keep (if truth f && whole q && Qle_bool 1 q then 1 else q)
      | _ => keep q
      end
  end.

(** ** Polynomials *)

Fixpoint plus (c : Q) (m : mono) (p : poly) : poly :=
  match p with
  | [] => if Qeq_bool c 0 then [] else [(c, m)]
  | (d, k) :: p' =>
      match cmp_m m k with
      | Eq => let s := Qred (c + d) in if Qeq_bool s 0 then p' else (s, k) :: p'
      | Lt => if Qeq_bool c 0 then p else (c, m) :: p
      | Gt => (d, k) :: plus c m p'
      end
  end.
Definition padd (p q : poly) : poly := fold_right (fun t => plus (fst t) (snd t)) q p.
Definition tmul (c : Q) (m : mono) (t : Q * mono) : Q * mono := tidy (Qred (c * fst t)) (mmul m (snd t)).
Definition pscale (c : Q) (m : mono) (p : poly) : poly :=
  fold_right (fun t r => let u := tmul c m t in plus (fst u) (snd u) r) [] p.
Definition pmul (p q : poly) : poly := fold_right (fun t r => padd (pscale (fst t) (snd t) q) r) [] p.

Definition reify_t (t : Q * mono) : expr :=
  if Qeq_bool (fst t) 1 then reify_m (snd t) else Mul (Num (fst t)) (reify_m (snd t)).
Fixpoint reify (p : poly) : expr :=
  match p with
  | [] => Num 0
  | [t] => reify_t t
  | t :: p => Add (reify_t t) (reify p)
  end.
Definition atom (e : expr) : poly := [(1, [(e, 1)])].

Section Denotation.
Context {A : structure} (In : inputs A).
Add Ring A_ring : (ring_laws A).
Notation den := (den In).
Notation def := (def In).

Fixpoint den_m (I : Z -> A) (m : mono) : A :=
  match m with [] => one | (e, q) :: m => mul (pw (den I e) q) (den_m I m) end.
Fixpoint ok_m (I : Z -> A) (m : mono) : Prop :=
  match m with [] => True | (e, q) :: m => (def I e /\ ok (den I e) q) /\ ok_m I m end.
Fixpoint den_p (I : Z -> A) (p : poly) : A :=
  match p with [] => zero | (c, m) :: p => add (mul (num c) (den_m I m)) (den_p I p) end.
Fixpoint ok_p (I : Z -> A) (p : poly) : Prop :=
  match p with [] => True | (c, m) :: p => ok_m I m /\ ok_p I p end.

(** [m] is defined and is [x]; the same of polynomials and expressions. *)
Definition is_m I (m : mono) (x : A) : Prop := ok_m I m /\ den_m I m = x.
Definition is_p I (p : poly) (x : A) : Prop := ok_p I p /\ den_p I p = x.
Definition is_e I (e : expr) (x : A) : Prop := def I e /\ den I e = x.

Lemma num_zero_bool c : Qeq_bool c 0 = true -> num c = (zero : A).
Proof. intros E. apply Qeq_bool_eq in E. now rewrite (num_eq A _ _ E), num_0. Qed.
Lemma num_red a : num (Qred a) = (num a : A).
Proof. apply num_eq, Qred_correct. Qed.
Lemma pw_red (x : A) a : pw x (Qred a) = pw x a.
Proof. apply pw_eq, Qred_correct. Qed.
Lemma ok_red (x : A) a : ok x a -> ok x (Qred a).
Proof. apply ok_eq. symmetry. apply Qred_correct. Qed.
Lemma cmp_factor_eq f g : cmp_factor f g = Eq -> f = g.
Proof.
  unfold cmp_factor. intros H. apply then_eq in H as [H K]. apply cmp_eq in H. apply compare_numbers_eq in K.
  destruct f, g. cbn in *. congruence.
Qed.
Lemma cmp_m_eq m : forall k, cmp_m m k = Eq -> m = k.
Proof.
  induction m as [| f m IH]; intros [| g k]; cbn; try discriminate; auto. intros H.
  apply then_eq in H as [H K]. apply cmp_factor_eq in H. apply IH in K. congruence.
Qed.

(** *** Monomials *)
Lemma put_is I e q m x : def I e -> ok (den I e) q -> is_m I m x -> is_m I (put e q m) (mul (pw (den I e) q) x).
Proof.
  intros D K [O <-]. induction m as [| [f r] m IH]; cbn; [repeat split; auto; apply K |].
  destruct O as [[Df Kf] O]. specialize (IH O). destruct (cmp e f) eqn:C.
  - apply cmp_eq in C as <-. assert (S : ok (den I e) (Qred (q + r))) by now apply ok_red, ok_plus.
    assert (E : pw (den I e) (Qred (q + r)) = mul (pw (den I e) q) (pw (den I e) r))
      by (rewrite pw_red; now apply pw_plus).
    cbv zeta. destruct (Qeq_bool (Qred (q + r)) 0) eqn:Z.
    + split; auto. apply Qeq_bool_eq in Z. rewrite (pw_eq A _ _ _ Z), pw_0 in E.
      transitivity (mul one (den_m I m)); [ring | rewrite E; ring].
    + split; [cbn; auto |]. cbn. rewrite E. ring.
  - split; cbn; auto.
  - destruct IH as [O' E]. split; cbn; auto. rewrite E. ring.
Qed.
Lemma mmul_is I m k x y : is_m I m x -> is_m I k y -> is_m I (mmul m k) (mul x y).
Proof.
  intros [O <-] K. induction m as [| [e q] m IH]; cbn.
  - destruct K as [K <-]. split; auto. ring.
  - destruct O as [[D Q] O]. replace (mul (mul (pw (den I e) q) (den_m I m)) y) with
      (mul (pw (den I e) q) (mul (den_m I m) y)) by ring. apply put_is; auto.
Qed.
Lemma app_is I m k x y : is_m I m x -> is_m I k y -> is_m I (m ++ k) (mul x y).
Proof.
  intros [O <-] [K <-]. induction m as [| [e q] m IH]; cbn; [split; auto; ring |].
  destruct O as [D O]. destruct (IH O) as [O' E]. split; cbn; auto. rewrite E. ring.
Qed.
Lemma reify_f_is I e q : def I e -> ok (den I e) q -> is_e I (reify_f (e, q)) (pw (den I e) q).
Proof.
  intros D K. unfold reify_f. cbn. destruct (Qeq_bool q 1) eqn:E.
  - split; auto. apply Qeq_bool_eq in E. now rewrite (pw_eq A _ _ _ E), pw_1.
  - split; cbn; auto.
Qed.
Lemma reify_m_is I m x : is_m I m x -> is_e I (reify_m m) x.
Proof.
  revert x. induction m as [| [e q] m IH]; intros x [O E].
  - split; cbn in *; auto. cbn. now rewrite num_1.
  - destruct O as [[D K] O]. cbn in E. pose proof (reify_f_is I e q D K) as [D' E'].
    destruct m as [| f m]; [split; auto; cbn in *; rewrite E', <- E; ring |].
    destruct (IH _ (conj O eq_refl)) as [D'' E''].
    change (is_e I (Mul (reify_f (e, q)) (reify_m (f :: m))) x).
    split; [cbn; auto |]. change (mul (den I (reify_f (e, q))) (den I (reify_m (f :: m))) = x).
    now rewrite E', E''.
Qed.
Lemma one_factor_is I e : def I e -> is_m I [(e, 1)] (den I e).
Proof. intros D. split; cbn; [repeat split; auto; apply ok_1 |]. rewrite pw_1. ring. Qed.
Lemma factors_is I e : def I e -> is_m I (factors e) (den I e).
Proof.
  induction e; try apply one_factor_is; cbn; intros D.
  - destruct (Qeq_bool q 1) eqn:E; [| now apply one_factor_is]. split; cbn; auto.
    apply Qeq_bool_eq in E. now rewrite (num_eq A _ _ E), num_1.
  - destruct D. now apply app_is; [apply IHe1 | apply IHe2].
  - destruct D. split; cbn; auto. ring.
Qed.

(** *** Powers of numbers *)
Lemma pw_num_nat k n : pw (num k : A) (inject_Z (Z.of_nat n)) = num (k ^ Z.of_nat n).
Proof.
  induction n as [| n IH].
  - change (inject_Z (Z.of_nat 0)) with 0. rewrite pw_0. symmetry. apply num_1.
  - rewrite Nat2Z.inj_succ. unfold Z.succ.
    assert (W : forall z, (0 <= z)%Z -> ok (num k : A) (inject_Z z)).
    { intros z H. apply ok_whole; [apply whole_inject |]. change 0 with (inject_Z 0). now rewrite <- Zle_Qle. }
    rewrite (pw_eq A _ _ _ (Qeq_sym _ _ (Qeq_sym _ _ (inject_Z_plus _ _)))) || rewrite inject_Z_plus.
    rewrite pw_plus, IH by (apply W; lia). change (inject_Z 1) with 1. rewrite pw_1, <- num_mult.
    apply num_eq. destruct n; [cbn; ring |]. rewrite Qpower_plus' by lia. change (k ^ 1) with k. ring.
Qed.
Lemma pw_num k z : ~ k == 0 -> pw (num k : A) (inject_Z z) = num (k ^ z).
Proof.
  intros N. destruct (Z.le_ge_cases 0 z) as [P | P].
  - rewrite <- (Z2Nat.id z P). apply pw_num_nat.
  - set (n := Z.to_nat (- z)). assert (E : z = (- Z.of_nat n)%Z) by (unfold n; lia).
    assert (W : forall z, ok (num k : A) (inject_Z z))
      by (intros; apply ok_whole_apart; [apply whole_inject | now apply num_not_0]).
    pose proof (pw_inverse (num k : A) (inject_Z (Z.of_nat n))) as H.
    rewrite <- inject_Z_opp, <- E in H. specialize (H (W _) (W _)). rewrite pw_num_nat in H.
    assert (K : mul (num (k ^ Z.of_nat n)) (num (k ^ z)) = (one : A)).
    { rewrite <- num_mult, <- num_1. apply num_eq. rewrite <- Qpower_plus by assumption.
      replace (Z.of_nat n + z)%Z with 0%Z by lia. reflexivity. }
    transitivity (mul (mul (num (k ^ Z.of_nat n)) (num (k ^ z))) (pw (num k : A) (inject_Z z)));
      [rewrite K; ring |].
    transitivity (mul (mul (num (k ^ Z.of_nat n)) (pw (num k : A) (inject_Z z))) (num (k ^ z))); [ring |].
    rewrite H. ring.
Qed.
Lemma positive_bool k : Qle_bool k 0 = false -> 0 < k.
Proof.
  intros E. apply Qnot_le_lt. intros L. apply Qle_bool_iff in L. congruence.
Qed.
Lemma positive_apart k : 0 < k -> ~ k == 0.
Proof. intros P E. rewrite E in P. exact (Qlt_irrefl 0 P). Qed.

Lemma truth_power (x : A) q : mul x x = x -> whole q = true -> 1 <= q -> pw x q = x.
Proof.
  intros E W L. rewrite (pw_eq A x _ _ (whole_of_spec q W)).
  assert (P : (1 <= whole_of q)%Z).
  { rewrite Zle_Qle. now rewrite <- (whole_of_spec q W). }
  rewrite <- (Z2Nat.id (whole_of q)) by lia. assert (N : Z.to_nat (whole_of q) <> O) by lia.
  induction (Z.to_nat (whole_of q)) as [| n IH]; [easy |]. destruct n as [| n]; [apply pw_1 |].
  assert (K : ok x (inject_Z (Z.of_nat (S n)))).
  { apply ok_whole; [apply whole_inject |]. change 0 with (inject_Z 0). rewrite <- Zle_Qle. lia. }
  rewrite Nat2Z.inj_succ. unfold Z.succ. rewrite inject_Z_plus, pw_plus by (exact K || apply ok_1).
  rewrite IH by discriminate.
  change (inject_Z 1) with 1. now rewrite pw_1.
Qed.
Lemma tidy_is I m : forall c, ok_m I m ->
  ok_m I (snd (tidy c m)) /\ mul (num (fst (tidy c m))) (den_m I (snd (tidy c m))) = mul (num c) (den_m I m).
Proof.
  induction m as [| [e q] m IH]; intros c O; [cbn; auto |].
  destruct O as [[D K] O].
  assert (Keep : forall r, ok (den I e) r -> pw (den I e) r = pw (den I e) q ->
    let t := let (d, m'') := tidy c m in (d, (e, r) :: m'') in
    ok_m I (snd t) /\ mul (num (fst t)) (den_m I (snd t)) = mul (num c) (mul (pw (den I e) q) (den_m I m))).
  { intros r Kr <-. specialize (IH c O). destruct (tidy c m) as [d m'']. cbn in *. destruct IH as [O' E]. split; auto.
    transitivity (mul (mul (num d) (den_m I m'')) (pw (den I e) r)); [ring | rewrite E; ring]. }
  change (den_m I ((e, q) :: m)) with (mul (pw (den I e) q) (den_m I m)).
  destruct e; try (now apply (Keep q)); cbn [tidy].
  - destruct (Qle_bool q0 0) eqn:L; [now apply (Keep q) |]. clear Keep. apply positive_bool in L.
    cbv zeta. set (w := Qfloor q). set (r := Qred (q - inject_Z w)).
    specialize (IH (Qred (c * q0 ^ w)) O). destruct (tidy _ m) as [d m'']. cbn [fst snd] in *. destruct IH as [O' E].
    assert (S : pw (num q0 : A) q = mul (num (q0 ^ w)) (pw (num q0) r)).
    { rewrite <- pw_num by now apply positive_apart. unfold r. rewrite pw_red.
      rewrite <- pw_plus by now apply num_ok. apply pw_eq. ring. }
    rewrite num_red, num_mult in E. cbn [den].
    destruct (Qeq_bool r 0) eqn:Z; (split; [repeat split; auto; now apply num_ok |]).
    + apply Qeq_bool_eq in Z. rewrite (pw_eq A _ _ _ Z), pw_0 in S. cbn. rewrite E, S. ring.
    + cbn. transitivity (mul (mul (num d) (den_m I m'')) (pw (num q0) r)); [ring | rewrite E, S; ring].
  - destruct (truth f && whole q && Qle_bool 1 q) eqn:T; [| now apply (Keep q)].
    apply andb_prop in T as [T L]. apply andb_prop in T as [T W]. apply Qle_bool_iff in L.
    apply (Keep 1); [apply ok_1 |]. rewrite pw_1. symmetry. apply truth_power; auto. now apply truth_square.
Qed.

(** *** Polynomials *)
Lemma plus_is I c m p x y : is_m I m x -> is_p I p y -> is_p I (plus c m p) (add (mul (num c) x) y).
Proof.
  intros [O <-] [P <-]. induction p as [| [d k] p IH]; cbn.
  - destruct (Qeq_bool c 0) eqn:E; split; cbn; auto. rewrite (num_zero_bool _ E). ring.
  - destruct P as [Ok P]. destruct (cmp_m m k) eqn:C.
    + apply cmp_m_eq in C as <-. assert (S := num_red (c + d)). rewrite num_plus in S.
      cbv zeta. destruct (Qeq_bool (Qred (c + d)) 0) eqn:E.
      * split; auto. rewrite (num_zero_bool _ E) in S.
        transitivity (add (mul zero (den_m I m)) (den_p I p)); [ring | rewrite S; ring].
      * split; cbn; auto. rewrite S. ring.
    + destruct (Qeq_bool c 0) eqn:E; split; cbn; auto. rewrite (num_zero_bool _ E). ring.
    + destruct (IH P) as [O' E]. split; cbn; auto. rewrite E. ring.
Qed.
Lemma padd_is I p q x y : is_p I p x -> is_p I q y -> is_p I (padd p q) (add x y).
Proof.
  intros [O <-] Q. induction p as [| [c m] p IH]; cbn.
  - destruct Q as [Q <-]. split; auto. ring.
  - destruct O as [Om O]. replace (add (add (mul (num c) (den_m I m)) (den_p I p)) y) with
      (add (mul (num c) (den_m I m)) (add (den_p I p) y)) by ring.
    apply plus_is; [now split | now apply IH].
Qed.
Lemma tmul_is I c m d k : ok_m I m -> ok_m I k ->
  ok_m I (snd (tmul c m (d, k))) /\
  mul (num (fst (tmul c m (d, k)))) (den_m I (snd (tmul c m (d, k)))) =
    mul (mul (num c) (den_m I m)) (mul (num d) (den_m I k)).
Proof.
  intros O K. unfold tmul. cbn [fst snd].
  destruct (mmul_is I m k _ _ (conj O eq_refl) (conj K eq_refl)) as [O' E].
  destruct (tidy_is I (mmul m k) (Qred (c * d)) O') as [O'' E'']. split; auto.
  rewrite E'', E, num_red, num_mult. ring.
Qed.
Lemma pscale_is I c m p x y : is_m I m x -> is_p I p y -> is_p I (pscale c m p) (mul (mul (num c) x) y).
Proof.
  intros [O <-] [P <-]. induction p as [| [d k] p IH]; cbn; [split; cbn; auto; ring |].
  destruct P as [Ok P]. destruct (tmul_is I c m d k O Ok) as [O' E].
  replace (mul (mul (num c) (den_m I m)) (add (mul (num d) (den_m I k)) (den_p I p))) with
    (add (mul (mul (num c) (den_m I m)) (mul (num d) (den_m I k))) (mul (mul (num c) (den_m I m)) (den_p I p)))
    by ring.
  rewrite <- E. apply plus_is; [split; auto | now apply IH].
Qed.
Lemma pmul_is I p q x y : is_p I p x -> is_p I q y -> is_p I (pmul p q) (mul x y).
Proof.
  intros [O <-] Q. induction p as [| [c m] p IH]; cbn; [split; cbn; auto; ring |].
  destruct O as [Om O]. replace (mul (add (mul (num c) (den_m I m)) (den_p I p)) y) with
    (add (mul (mul (num c) (den_m I m)) y) (mul (den_p I p) y)) by ring.
  apply padd_is; [| now apply IH]. apply pscale_is; auto. now split.
Qed.
Lemma reify_t_is I c m : ok_m I m -> is_e I (reify_t (c, m)) (mul (num c) (den_m I m)).
Proof.
  intros O. destruct (reify_m_is I m _ (conj O eq_refl)) as [D E]. unfold reify_t. cbn.
  destruct (Qeq_bool c 1) eqn:C.
  - apply Qeq_bool_eq in C. split; auto. rewrite E, (num_eq A _ _ C), num_1. ring.
  - split; cbn; auto. now rewrite E.
Qed.
Lemma reify_is I p x : is_p I p x -> is_e I (reify p) x.
Proof.
  revert x. induction p as [| [c m] p IH]; intros x [O E].
  - split; cbn in *; auto. cbn. now rewrite num_0.
  - destruct O as [Om O]. cbn in E. destruct (reify_t_is I c m Om) as [D E'].
    destruct p as [| t p]; [split; auto; cbn in *; rewrite E', <- E; ring |].
    destruct (IH _ (conj O eq_refl)) as [D'' E''].
    change (is_e I (Add (reify_t (c, m)) (reify (t :: p))) x).
    split; [cbn; auto |]. change (add (den I (reify_t (c, m))) (den I (reify (t :: p))) = x).
    now rewrite E', E''.
Qed.
Lemma term_is I c m x : is_m I m x -> is_p I [(c, m)] (mul (num c) x).
Proof. intros [O <-]. split; cbn; auto. ring. Qed.
Lemma atom_is I e : def I e -> is_p I (atom e) (den I e).
Proof.
  intros D. replace (den I e) with (mul (num 1) (den I e)) by (rewrite num_1; ring).
  now apply term_is, one_factor_is.
Qed.
End Denotation.
