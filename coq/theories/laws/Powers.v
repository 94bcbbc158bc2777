(** * Powers and exponentials of sums of products

    A power of one product is the product of powers, where that is right: for whole exponents, and for
    factors that are not negative.  A power of a sum leaves what its terms have in common. *)

From Coq Require Import List Bool ZArith QArith Qpower Qabs Ring Lia.
Import ListNotations.
From PyPM.laws Require Import Structures Expressions Polynomials.

#[local] Arguments Qred : simpl never.
#[local] Arguments Qpower : simpl never.
#[local] Arguments Qmult : simpl never.

Definition negative (q : Q) : bool := negb (Qle_bool 0 q).
Definition even (q : Q) : bool := whole q && Z.even (whole_of q).

(** Certainly not negative, where defined: *)
Fixpoint nonneg (e : expr) : bool :=
  match e with
  | Num k => Qle_bool 0 k
  | Size _ | Var _ | Exp _ => true
  | Add a b | Mul a b => nonneg a && nonneg b
  | Pow a q => even q || negb (whole q) || nonneg a
  | Sum _ _ a | Max _ _ a => nonneg a
  | Fn f _ => truth f
  | _ => false
  end.
Definition nonneg_f (f : factor) : bool := even (snd f) || nonneg (fst f).
(** Certainly positive: *)
Fixpoint positive (e : expr) : bool :=
  match e with
  | Num k => negb (Qle_bool k 0)
  | Size _ | Exp _ => true
  | Add a b => positive a && nonneg b || nonneg a && positive b
  | Mul a b => positive a && positive b
  | Pow a _ => positive a
  | Sum _ _ a => positive a
  | _ => false
  end.
Definition positive_f (f : factor) : bool := positive (fst f) || nonneg (fst f) && negative (snd f).

(** A root of an even power is a power of the square. *)
Definition raised_f (q : Q) (f : factor) : factor :=
  if whole q || nonneg (fst f) then (fst f, Qred (snd f * q))
  else if even (snd f) then (Pow (fst f) 2, Qred (snd f * (1 # 2) * q))
  else (Pow (fst f) (snd f), q).
Definition raised (q : Q) (m : mono) : mono :=
  fold_right (fun f => let g := raised_f q f in put (fst g) (snd g)) [] m.

(** A power of a positive number, or a whole one of a number. *)
Definition root_of (n : Z) (q : Q) (m : mono) : mono := if Z.eqb n 1 then m else put (Num (inject_Z n)) q m.
Definition power_of_number (c q : Q) : Q * mono :=
  if whole q then (Qred (c ^ whole_of q), [])
  else tidy 1 (root_of (Qnum c) q (root_of (Zpos (Qden c)) (- q) [])).

(** ** What the terms of a sum have in common *)

Definition is_sum (e : expr) : bool := match e with Add _ _ => true | _ => false end.
Definition is_exp (e : expr) : bool := match e with Exp _ => true | _ => false end.
Fixpoint divide_m (e : expr) (a : Q) (m : mono) : option mono :=
  match m with
  | [] => None
  | (f, b) :: m' =>
      if same e f then
        if (if is_exp e then Qeq_bool a b else Qle_bool a b) then
          let r := Qred (b - a) in Some (if Qeq_bool r 0 then m' else (f, r) :: m')
        else None
      else option_map (cons (f, b)) (divide_m e a m')
  end.
Fixpoint divide_p (e : expr) (a : Q) (p : poly) : option poly :=
  match p with
  | [] => Some []
  | (c, m) :: p =>
      match divide_m e a m, divide_p e a p with
      | Some m', Some p' => Some (plus c m' p')
      | _, _ => None
      end
  end.
Fixpoint share (candidates common : mono) (p : poly) : mono * poly :=
  match candidates with
  | [] => (common, p)
  | (e, a) :: fs =>
      match divide_p e a p with
      | Some p' => share fs (put e a common) p'
      | None => share fs common p
      end
  end.
Definition candidates (p : poly) (q : Q) : mono :=
  if whole q then flat_map snd p else filter positive_f (flat_map snd p).
Definition lead (p : poly) (q : Q) : Q :=
  match p with
  | (c, _) :: _ => if whole q then c else Qred (Qabs c)
  | [] => 1
  end.

(** ** Powers *)

Fixpoint times (n : nat) (p : poly) : poly := match n with O => [(1, [])] | S n => pmul p (times n p) end.
Definition most : Z := 8.    (* the largest exponent by which a sum is multiplied out *)

Definition power_of_term (c : Q) (m : mono) (q : Q) : poly :=
  let held : poly := [(1, [(reify_t (c, m), q)])] in
  if Qeq_bool c 0 then held
  else if whole q then [tmul 1 (raised q m) (power_of_number c q)]
  else if Qle_bool c 0 then held
  else if forallb nonneg_f m then [tmul 1 (raised q m) (power_of_number c q)]
  else
    let (p, r) := partition positive_f m in
    [tmul 1 (mmul (raised q p) [(reify_m r, q)]) (power_of_number c q)].

Definition power_of_sum (p : poly) (q : Q) : poly :=
  let (common, rest) := share (candidates p q) [] p in
  let l := lead rest q in
  if Qeq_bool l 0 || negb (whole q || negb (Qle_bool l 0) && forallb nonneg_f common) then
    [(1, [(reify p, q)])]
  else
    let base := reify (pscale (/ l) [] rest) in
    [tmul 1 (put base q (raised q common)) (power_of_number l q)].

Definition ppow (p : poly) (q : Q) : poly :=
  if Qeq_bool q 0 then [(1, [])]
  else if Qeq_bool q 1 then p
  else match p with
  | [] => if negative q then [(1, [(Num 0, q)])] else []
  | [(c, m)] => power_of_term c m q
  | _ => if whole q && Z.leb 0 (whole_of q) && Z.leb (whole_of q) most then times (Z.to_nat (whole_of q)) p
         else power_of_sum p q
  end.

(** A multiple of a logarithm has no exponential, but a power. *)
Definition exp_of (c : Q) (m : mono) : factor :=
  match m with
  | [(Fn f (Cons a Nil), q)] => if Z.eqb f log && Qeq_bool q 1 then (a, c) else (Exp (reify_m m), c)
  | _ => (Exp (reify_m m), c)
  end.
Definition pexp (p : poly) : poly :=
  [(1, fold_right (fun t => let g := exp_of (fst t) (snd t) in put (fst g) (snd g)) [] p)].

(** ** Logarithms *)
Definition log_of (e : expr) : poly := atom (Fn log (Cons e Nil)).
Definition log_of_factor (f : factor) : poly :=
  match fst f with
  | Exp a => pscale (snd f) (factors a) [(1, [])]
  | e => pscale (snd f) [] (log_of e)
  end.
Definition logs (m : mono) : poly := fold_right (fun f => padd (log_of_factor f)) [] m.
Definition plog (p : poly) : poly :=
  let (common, rest) := share (filter positive_f (flat_map snd p)) [] p in
  if negb (forallb positive_f common) then log_of (reify p)
  else match rest with
  | [(c, [])] => if Qeq_bool c 1 then logs common else padd (logs common) (log_of (reify rest))
  | _ => padd (logs common) (log_of (reify rest))
  end.

Lemma numerator_positive c : 0 < c -> (0 < Qnum c)%Z.
Proof. unfold Qlt. simpl. now rewrite Z.mul_1_r. Qed.

(** ** They denote what they should *)

Section Denotation.
Context {A : structure} (In : inputs A).
Add Ring A_ring : (ring_laws A).
Notation den := (den In).
Notation def := (def In).
Notation den_m := (den_m In).
Notation ok_m := (ok_m In).
Notation is_m := (is_m In).
Notation is_p := (is_p In).
Notation is_e := (is_e In).

Lemma negative_lt q : negative q = true -> q < 0.
Proof.
  unfold negative. rewrite negb_true_iff. intros H. apply Qnot_le_lt. intros L.
  apply Qle_bool_iff in L. congruence.
Qed.
Lemma even_nn (x : A) q : even q = true -> ok x q -> nn (pw x q).
Proof.
  unfold even. rewrite andb_true_iff. intros [W E] K. apply Z.even_spec in E as [z E].
  assert (S : q == inject_Z z + inject_Z z).
  { rewrite (whole_of_spec q W), E, <- inject_Z_plus. now replace (2 * z)%Z with (z + z)%Z by lia. }
  assert (H : ok x (inject_Z z)).
  { split; [| rewrite whole_inject; discriminate]. intros L. apply K. rewrite S.
    rewrite <- (Qplus_0_l 0). now apply Qplus_lt_le_compat; [| apply Qlt_le_weak]. }
  rewrite (pw_eq A x _ _ S), pw_plus by assumption. apply nn_square.
Qed.
Lemma size_positive I s : nn (den I (Size s)) /\ den I (Size s) <> zero.
Proof.
  cbn. split; [now apply num_nn |]. apply num_not_0. discriminate.
Qed.
Lemma nonneg_is e : forall I, nonneg e = true -> def I e -> nn (den I e).
Proof.
  induction e; cbn; try discriminate; intros I H D.
  - apply num_nn. now apply Qle_bool_iff.
  - now apply num_nn.
  - destruct D as [i ->]. apply num_nn. change 0 with (inject_Z 0). rewrite <- Zle_Qle. lia.
  - apply andb_prop in H as [H K]. destruct D. apply nn_add; auto.
  - apply andb_prop in H as [H K]. destruct D. apply nn_mul; auto.
  - destruct D as [D K]. apply orb_prop in H as [H | H]; [apply orb_prop in H as [H | H] |].
    + now apply even_nn.
    + apply pw_nn; [exact K |]. apply K. now apply negb_true_iff.
    + apply pw_nn; auto.
  - apply exp_nn.
  - rewrite <- truth_square by assumption. apply nn_square.
  - destruct D as (_ & _ & D). apply sum_nn. auto.
  - destruct D as (_ & [_ P] & D). apply greatest_nn; auto.
Qed.
Lemma nonneg_f_is I e q : nonneg_f (e, q) = true -> def I e -> ok (den I e) q -> nn (pw (den I e) q).
Proof.
  unfold nonneg_f. cbn. intros H D K. apply orb_prop in H as [H | H]; [now apply even_nn |].
  apply pw_nn; auto. now apply nonneg_is.
Qed.
Lemma above_bool k : negb (Qle_bool k 0) = true -> above (num k : A).
Proof. rewrite negb_true_iff. intros H. now apply above_num, positive_bool. Qed.
Lemma positive_is e : forall I, positive e = true -> def I e -> above (den I e).
Proof.
  induction e; cbn [positive]; try discriminate; intros I H D.
  - now apply above_bool.
  - apply size_positive.
  - destruct D as [D D']. apply orb_prop in H as [H | H]; apply andb_prop in H as [H H'].
    + apply above_add; [now apply IHe1 | now apply nonneg_is].
    + cbn. replace (add (den I e1) (den I e2)) with (add (den I e2) (den I e1)) by ring.
      apply above_add; [now apply IHe2 | now apply nonneg_is].
  - destruct D as [D D']. apply andb_prop in H as [H H']. apply above_mul; [now apply IHe1 | now apply IHe2].
  - destruct D as [D K]. apply above_pw. now apply IHe.
  - split; [apply exp_nn | apply exp_apart].
  - destruct D as (_ & [_ S] & D). apply sum_above; [exact S |]. intros i L. apply IHe2; auto.
Qed.
Lemma positive_nonneg e : positive e = true -> nonneg e = true.
Proof.
  induction e; cbn; try discriminate; auto; intros H.
  - rewrite negb_true_iff in H. apply positive_bool, Qlt_le_weak in H. now apply Qle_bool_iff.
  - apply orb_prop in H as [H | H]; apply andb_prop in H as [H H']; apply andb_true_intro; auto.
  - apply andb_prop in H as [H H']. apply andb_true_intro; auto.
  - apply orb_true_iff. auto.
Qed.
Lemma positive_f_is I e q : positive_f (e, q) = true -> def I e -> ok (den I e) q -> above (den I e).
Proof.
  unfold positive_f. cbn [fst snd]. intros H D K. apply orb_prop in H as [H | H]; [now apply positive_is |].
  apply andb_prop in H as [H N]. split; [now apply nonneg_is |]. now apply K, negative_lt.
Qed.
Lemma positive_m_is I m : ok_m I m -> forallb positive_f m = true -> above (den_m I m).
Proof.
  induction m as [| [e q] m IH]; cbn [forallb]; intros O H; [exact above_one |].
  destruct O as [[D K] O]. apply andb_prop in H as [H H'].
  change (above (mul (pw (den I e) q) (den_m I m))). apply above_mul; auto.
  apply above_pw. now apply (positive_f_is I e q).
Qed.
Lemma nonneg_m_is I m : ok_m I m -> forallb nonneg_f m = true -> nn (den_m I m).
Proof.
  induction m as [| [e q] m IH]; cbn [forallb]; intros O H; [apply above_one |].
  destruct O as [[D K] O]. apply andb_prop in H as [H H'].
  change (nn (mul (pw (den I e) q) (den_m I m))). apply nn_mul; auto. now apply nonneg_f_is.
Qed.

(** *** Powers of products *)
Lemma ok_parts (x y : A) q : ok (mul x y) q -> (whole q = true \/ (nn x /\ nn y)) -> ok x q /\ ok y q.
Proof.
  intros [N W] H. assert (E : q < 0 -> x <> zero /\ y <> zero) by (intros; now apply mul_apart, N).
  destruct H as [H | [P P']].
  - split; (split; [intros L; now apply E | congruence]).
  - split; (split; [intros L; now apply E | auto]).
Qed.
Lemma square_of (x : A) a : even a = true -> ok x a ->
  ok x 2 /\ ok (pw x 2) (a * (1 # 2)) /\ pw x a = pw (pw x 2) (a * (1 # 2)) /\ nn (pw x 2).
Proof.
  unfold even. rewrite andb_true_iff. intros [W E] K. apply Z.even_spec in E as [z E].
  assert (S : a * (1 # 2) == inject_Z z).
  { rewrite (whole_of_spec a W), E, inject_Z_mult. field. }
  assert (Wh : whole (a * (1 # 2)) = true) by (rewrite (whole_eq _ _ S); apply whole_inject).
  assert (K2 : ok x 2) by (apply ok_whole; [reflexivity | discriminate]).
  assert (Kh : ok (pw x 2) (a * (1 # 2))).
  { split; [| congruence]. intros L. assert (N : a < 0).
    { apply Qnot_le_lt. intros G. apply (Qlt_not_le _ _ L), Qmult_le_0_compat; [exact G | discriminate]. }
    apply pw_apart; [exact K2 |]. apply ok_whole_apart; [reflexivity | now apply K]. }
  split; [exact K2 | split; [exact Kh | split]].
  - rewrite pw_pw by auto. apply pw_eq. field.
  - now apply even_nn.
Qed.
Lemma raised_f_is I e a q : def I e -> ok (den I e) a -> ok (pw (den I e) a) q ->
  let g := raised_f q (e, a) in
  def I (fst g) /\ ok (den I (fst g)) (snd g) /\ pw (den I (fst g)) (snd g) = pw (pw (den I e) a) q.
Proof.
  intros D K K'. unfold raised_f. cbn [fst snd]. destruct (whole q || nonneg e) eqn:O.
  - assert (H : whole q = true \/ nn (den I e)).
    { apply orb_prop in O as [O | O]; auto. right. now apply nonneg_is. }
    cbn [fst snd]. split; [exact D | split; [apply ok_red; now apply ok_pw |]].
    rewrite pw_red. symmetry. now apply pw_pw.
  - clear O. destruct (even a) eqn:E; [| now cbn; auto].
    destruct (square_of _ a E K) as (K2 & Kh & S & P). cbn [fst snd]. rewrite S in K' |- *.
    split; [split; [exact D | exact K2] |]. change (den I (Pow e 2)) with (pw (den I e) 2).
    split; [apply ok_red, ok_pw; auto | rewrite pw_red; symmetry; apply pw_pw; auto].
Qed.
Lemma raised_is I m q x : is_m I m x -> ok x q -> (whole q = true \/ forallb nonneg_f m = true) ->
  is_m I (raised q m) (pw x q).
Proof.
  intros [O <-]. induction m as [| [e a] m IH]; intros K H.
  - split; [exact Logic.I |]. cbn. symmetry. rewrite <- exp_0, exp_pw. f_equal. ring.
  - destruct O as [[D Ka] O]. cbn [Polynomials.den_m] in K |- *. cbn [forallb] in H.
    assert (P : whole q = true \/ (nn (pw (den I e) a) /\ nn (den_m I m))).
    { destruct H as [H | H]; auto. apply andb_prop in H as [H H']. right.
      split; [now apply nonneg_f_is | now apply nonneg_m_is]. }
    destruct (ok_parts _ _ _ K P) as [K1 K2]. rewrite pw_mul by assumption.
    destruct (raised_f_is I e a q D Ka K1) as (D' & K' & <-).
    apply put_is; auto. apply IH; auto. destruct H as [H | H]; auto. apply andb_prop in H as [_ H]. auto.
Qed.
Lemma root_of_is I n q m x : (0 < n)%Z -> is_m I m x ->
  is_m I (root_of n q m) (mul (pw (num (inject_Z n)) q) x).
Proof.
  intros P M. unfold root_of. destruct (Z.eqb_spec n 1) as [-> | N].
  - replace (mul _ x) with x; auto. change (inject_Z 1) with 1. rewrite num_1, <- exp_0, exp_pw.
    replace (mul (num q) zero) with (zero : A) by ring. rewrite exp_0. ring.
  - apply (put_is In I (Num (inject_Z n)) q m x); [exact Logic.I | | exact M].
    apply num_ok. change 0 with (inject_Z 0). now rewrite <- Zlt_Qlt.
Qed.
Lemma power_of_number_is I c q : ~ c == 0 -> (whole q = true \/ 0 < c) ->
  ok_m I (snd (power_of_number c q)) /\
  mul (num (fst (power_of_number c q))) (den_m I (snd (power_of_number c q))) = pw (num c) q.
Proof.
  intros N H. unfold power_of_number. destruct (whole q) eqn:W.
  - split; [exact Logic.I |]. cbn. rewrite num_red, <- pw_num by assumption.
    rewrite <- (pw_eq A _ _ _ (whole_of_spec q W)). ring.
  - destruct H as [H | P]; [discriminate |]. set (n := Qnum c). set (d := Zpos (Qden c)).
    assert (Pn : (0 < n)%Z) by now apply numerator_positive.
    assert (Pd : (0 < d)%Z) by (unfold d; lia).
    destruct (root_of_is I n q _ _ Pn (root_of_is I d (- q) [] one Pd (conj Logic.I eq_refl))) as [O E].
    destruct (tidy_is In I _ 1 O) as [O' E']. split; auto. rewrite E', E, num_1.
    assert (S : num (inject_Z n) = mul (num c) (num (inject_Z d) : A)).
    { rewrite <- num_mult. apply num_eq. unfold n, d. destruct c as [a b]. unfold Qeq, Qmult, inject_Z. simpl.
      rewrite !Pos.mul_1_r. ring. }
    assert (Kd : forall r, ok (num (inject_Z d) : A) r).
    { intros r. apply num_ok. change 0 with (inject_Z 0). now rewrite <- Zlt_Qlt. }
    rewrite S, pw_mul by (try apply Kd; now apply num_ok).
    transitivity (mul (pw (num c) q) (mul (pw (num (inject_Z d)) q) (pw (num (inject_Z d)) (- q)) : A)); [ring |].
    rewrite pw_inverse by apply Kd. ring.
Qed.

(** *** Common factors *)
Lemma divide_m_is I e a m : forall m', def I e -> ok (den I e) a -> ok_m I m -> divide_m e a m = Some m' ->
  ok_m I m' /\ den_m I m = mul (pw (den I e) a) (den_m I m').
Proof.
  induction m as [| [f b] m IH]; cbn; intros m' D K O H; [discriminate |].
  destruct O as [[Df Kb] O]. destruct (same e f) eqn:E.
  - apply same_eq in E as <-.
    assert (L : (if is_exp e then Qeq_bool a b else Qle_bool a b) = true -> a <= b).
    { destruct (is_exp e); intros T; [apply Qeq_bool_eq in T; rewrite T; apply Qle_refl | now apply Qle_bool_iff]. }
    destruct (if is_exp e then _ else _); [| discriminate]. specialize (L eq_refl).
    assert (S := pw_minus (den I e) b a Kb K L). rewrite <- (pw_red _ (b - a)) in S.
    injection H as <-. destruct (Qeq_bool (Qred (b - a)) 0) eqn:Z.
    + apply Qeq_bool_eq in Z. rewrite (pw_eq A _ _ _ Z), pw_0 in S. split; auto. rewrite S. ring.
    + split; [cbn; repeat split; auto; apply ok_red; now apply ok_minus | cbn; rewrite S; ring].
  - destruct (divide_m e a m) as [m'' |]; [| discriminate]. injection H as <-.
    destruct (IH m'' D K O eq_refl) as [O' S]. split; [cbn; auto | cbn; rewrite S; ring].
Qed.
Lemma divide_p_is I e a p : forall p' x, def I e -> ok (den I e) a -> is_p I p x -> divide_p e a p = Some p' ->
  exists y, is_p I p' y /\ x = mul (pw (den I e) a) y.
Proof.
  induction p as [| [c m] p IH]; cbn [divide_p]; intros p' x D K [O <-] H.
  - injection H as <-. exists zero. split; [now split | cbn; ring].
  - destruct (divide_m e a m) as [m' |] eqn:E; [| discriminate].
    destruct (divide_p e a p) as [p'' |]; [| discriminate]. injection H as <-.
    destruct O as [Om O]. destruct (divide_m_is I e a m m' D K Om E) as [O' S].
    destruct (IH p'' _ D K (conj O eq_refl) eq_refl) as (y & Y & E').
    exists (add (mul (num c) (den_m I m')) y). split; [apply plus_is; auto; now split |].
    cbn. rewrite S, E'. ring.
Qed.
Lemma share_is I fs : forall common p y x, ok_m I fs -> is_m I common y -> is_p I p x ->
  exists y' x', is_m I (fst (share fs common p)) y' /\ is_p I (snd (share fs common p)) x' /\
    mul y x = mul y' x' /\ (forallb positive_f fs = true -> above y -> above y').
Proof.
  induction fs as [| [e a] fs IH]; cbn [share]; intros common p y x O M P.
  - exists y, x. auto.
  - destruct O as [[D K] O]. cbn [forallb].
    destruct (divide_p e a p) as [p' |] eqn:E.
    + destruct (divide_p_is I e a p p' x D K P E) as (x' & P' & ->).
      destruct (IH (put e a common) p' _ x' O (put_is In I e a common y D K M) P') as (y'' & x'' & M' & P'' & S & H).
      exists y'', x''. split; [exact M' | split; [exact P'' | split; [rewrite <- S; ring |]]].
      intros F G. apply andb_prop in F as [F F']. apply H; auto. apply above_mul; auto.
      apply above_pw. now apply (positive_f_is I e a).
    + destruct (IH common p y x O M P) as (y'' & x'' & M' & P'' & S & H).
      exists y'', x''. split; [exact M' | split; [exact P'' | split; [exact S |]]].
      intros F G. apply andb_prop in F as [F F']. now apply H.
Qed.
Lemma ok_candidates I p x : is_p I p x -> ok_m I (flat_map snd p).
Proof.
  intros [O _]. induction p as [| [c m] p IH]; cbn; auto. destruct O as [Om O]. specialize (IH O).
  clear O. induction m as [| [e q] m IHm]; cbn; auto. destruct Om as [K Om]. auto.
Qed.
Lemma ok_filter I f m : ok_m I m -> ok_m I (filter f m).
Proof.
  induction m as [| [e q] m IH]; cbn; auto. intros [K O]. destruct (f (e, q)); cbn; auto.
Qed.
Lemma forallb_filter {X} (f : X -> bool) l : forallb f (filter f l) = true.
Proof. induction l as [| x l IH]; cbn; auto. destruct (f x) eqn:E; cbn; auto. now rewrite E. Qed.
Lemma partition_is I (f : factor -> bool) m : ok_m I m ->
  let (p, r) := partition f m in
  forallb f p = true /\ ok_m I p /\ ok_m I r /\ den_m I m = mul (den_m I p) (den_m I r).
Proof.
  induction m as [| [e q] m IH]; cbn [partition]; intros O.
  - repeat split. cbn. ring.
  - destruct O as [K O]. specialize (IH O). destruct (partition f m) as [p r].
    destruct IH as (F & Op & Or & S). destruct (f (e, q)) eqn:E; cbn; rewrite ?E, S; repeat split; auto; try ring;
      apply K.
Qed.

(** *** Powers of terms and sums *)
Lemma held_is I e q x : is_e I e x -> ok x q -> is_p I [(1, [(e, q)])] (pw x q).
Proof.
  intros [D <-] K. split; cbn; auto. rewrite num_1. ring.
Qed.
Lemma assembled_is I m y c q : is_m I m y -> ~ c == 0 -> (whole q = true \/ 0 < c) ->
  is_p I [tmul 1 m (power_of_number c q)] (mul y (pw (num c) q)).
Proof.
  intros [O <-] N H. destruct (power_of_number_is I c q N H) as [Ok E].
  destruct (power_of_number c q) as [d k]. cbn [fst snd] in *.
  destruct (tmul_is In I 1 m d k O Ok) as [O' E']. split; [cbn; destruct (tmul 1 m (d, k)); cbn in *; auto |].
  destruct (tmul 1 m (d, k)) as [d' k']. cbn in *. rewrite E', E, num_1. ring.
Qed.
Lemma ok_scaled (c : Q) (x : A) q : ~ c == 0 -> (whole q = true \/ 0 < c) -> ok (mul (num c) x) q -> ok x q.
Proof.
  intros N H K. destruct H as [H | P]; [apply (ok_parts (num c) x q K); now left |].
  split; [intros L; now apply (mul_apart (num c) x), K |]. intros W.
  apply (nn_divided (num c) x); try apply above_num; auto. now apply K.
Qed.
Lemma num_ok_either c q : ~ c == 0 -> (whole q = true \/ 0 < c) -> ok (num c : A) q.
Proof. intros N [W | P]; [apply ok_whole_apart; auto; now apply num_not_0 | now apply num_ok]. Qed.
Lemma power_of_term_is I c m q x : is_m I m x -> ok (mul (num c) x) q ->
  is_p I (power_of_term c m q) (pw (mul (num c) x) q).
Proof.
  intros M K. unfold power_of_term.
  assert (Held : is_p I [(1, [(reify_t (c, m), q)])] (pw (mul (num c) x) q)).
  { apply held_is; auto. destruct M as [O <-]. now apply reify_t_is. }
  destruct (Qeq_bool c 0) eqn:Z; auto. apply Qeq_bool_neq in Z.
  assert (Split : (whole q = true \/ 0 < c) -> ok x q /\ pw (mul (num c) x) q = mul (pw x q) (pw (num c) q)).
  { intros H. assert (Kx := ok_scaled c x q Z H K). split; auto.
    rewrite pw_mul; auto; [ring | now apply num_ok_either]. }
  destruct (whole q) eqn:W.
  - destruct Split as [Kx ->]; auto. apply assembled_is; auto. apply raised_is; auto.
  - destruct (Qle_bool c 0) eqn:L; auto. apply positive_bool in L.
    destruct Split as [Kx ->]; auto. destruct (forallb nonneg_f m) eqn:Fm.
    + apply assembled_is; auto. apply raised_is; auto.
    + destruct M as [O <-]. pose proof (partition_is I positive_f m O) as P.
      destruct (partition positive_f m) as [p r]. destruct P as (Fp & Op & Or & S).
      pose proof (positive_m_is I p Op Fp) as Ap. rewrite S in Kx |- *.
      assert (Kr : ok (den_m I r) q).
      { split; [intros Lq; now apply (mul_apart (den_m I p)), Kx |]. intros _.
        apply (nn_divided (den_m I p)); try apply Ap. now apply Kx. }
      apply assembled_is; auto. rewrite pw_mul by (auto using above_ok). apply mmul_is.
      * apply raised_is; auto using above_ok; [now split |]. right.
        apply forallb_forall. intros [e a] Inp. rewrite forallb_forall in Fp. specialize (Fp _ Inp).
        unfold nonneg_f, positive_f in *. cbn [fst snd] in *. apply orb_true_iff. right.
        apply orb_prop in Fp as [Fp | Fp]; [now apply positive_nonneg |]. now apply andb_prop in Fp.
      * destruct (reify_m_is In I r _ (conj Or eq_refl)) as [D E]. split; cbn; rewrite E; auto. ring.
Qed.
Lemma power_of_sum_is I p q x : is_p I p x -> ok x q -> is_p I (power_of_sum p q) (pw x q).
Proof.
  intros P K. unfold power_of_sum. cbv zeta.
  assert (Of : ok_m I (candidates p q)).
  { pose proof (ok_candidates I p x P). unfold candidates. destruct (whole q); auto. now apply ok_filter. }
  destruct (share_is I (candidates p q) [] p one x Of (conj Logic.I eq_refl) P) as (y & z & M & R & S & H).
  destruct (share (candidates p q) [] p) as [common rest]. cbn [fst snd] in M, R.
  set (l := lead rest q).
  destruct (Qeq_bool l 0 || negb (whole q || negb (Qle_bool l 0) && forallb nonneg_f common)) eqn:B.
  - apply held_is; auto. now apply reify_is.
  - apply orb_false_iff in B as [Bz Bl]. apply Qeq_bool_neq in Bz.
    assert (C : (whole q = true \/ 0 < l) /\ (whole q = true \/ forallb nonneg_f common = true)).
    { apply negb_false_iff, orb_prop in Bl as [W | Bl]; auto. apply andb_prop in Bl as [L Fc].
      rewrite negb_true_iff in L. apply positive_bool in L. auto. }
    destruct C as [C Cf].
    assert (Sx : x = mul (num l) (mul y (mul (num (/ l)) z))).
    { transitivity (mul one x); [ring | rewrite S]. transitivity (mul (mul (num l) (num (/ l))) (mul y z)); [| ring].
      rewrite <- num_mult, (num_eq A (l * / l) 1), num_1 by now apply Qmult_inv_r. ring. }
    assert (Pw : ok (mul y (mul (num (/ l)) z)) q).
    { rewrite Sx in K. now apply (ok_scaled l) in K. }
    assert (Parts : ok y q /\ ok (mul (num (/ l)) z) q).
    { destruct (whole q) eqn:W; [apply ok_parts; auto |].
      assert (Ay : above y).
      { apply H; [| apply above_one]. unfold candidates. rewrite W. apply forallb_filter. }
      split; [now apply above_ok |]. split; [intros Lq; now apply (mul_apart y), Pw |]. intros _.
      apply (nn_divided y); try apply Ay. now apply Pw. }
    destruct Parts as [Ky Kz].
    replace (pw x q) with (mul (mul (pw (mul (num (/ l)) z) q) (pw y q)) (pw (num l) q)).
    2: { rewrite Sx. rewrite (pw_mul A (num l)), (pw_mul A y); auto; [ring | now apply num_ok_either]. }
    apply assembled_is; auto.
    assert (Rl : is_p I (pscale (/ l) [] rest) (mul (num (/ l)) z)).
    { replace (mul (num (/ l)) z) with (mul (mul (num (/ l)) one) z) by ring. apply pscale_is; auto. now split. }
    destruct (reify_is In I _ _ Rl) as [D E]. rewrite <- E. apply put_is; auto; [now rewrite E |].
    now apply raised_is.
Qed.

Lemma times_is I n p x : is_p I p x -> is_p I (times n p) (pw x (inject_Z (Z.of_nat n))).
Proof.
  intros P. induction n as [| n IH]; cbn [times].
  - change (inject_Z (Z.of_nat 0)) with 0. rewrite pw_0. split; cbn; auto. rewrite num_1. ring.
  - rewrite Nat2Z.inj_succ. unfold Z.succ. rewrite inject_Z_plus.
    assert (W : ok x (inject_Z (Z.of_nat n))).
    { apply ok_whole; [apply whole_inject |]. change 0 with (inject_Z 0). rewrite <- Zle_Qle. lia. }
    rewrite pw_plus by (auto; apply ok_1). change (inject_Z 1) with 1. rewrite pw_1.
    replace (mul (pw x _) x) with (mul x (pw x (inject_Z (Z.of_nat n)))) by ring. now apply pmul_is.
Qed.
Lemma ppow_is I p q x : is_p I p x -> ok x q -> is_p I (ppow p q) (pw x q).
Proof.
  intros P K. unfold ppow. destruct (Qeq_bool q 0) eqn:Z.
  - apply Qeq_bool_eq in Z. rewrite (pw_eq A _ _ _ Z), pw_0. split; cbn; auto. rewrite num_1. ring.
  - destruct (Qeq_bool q 1) eqn:E; [apply Qeq_bool_eq in E; now rewrite (pw_eq A _ _ _ E), pw_1 |].
    destruct p as [| [c m] [| t p]].
    + destruct P as [_ E']. cbn in E'. subst x. destruct (negative q) eqn:N.
      * apply held_is; auto. split; cbn; auto. apply num_0.
      * rewrite pw_zero; [now split |]. unfold negative in N. rewrite negb_false_iff in N.
        apply Qle_bool_iff, Qle_lteq in N as [N | N]; auto. apply Qeq_bool_neq in Z. now symmetry in N.
    + destruct P as [[O _] <-]. cbn in K |- *.
      replace (add (mul (num c) (den_m I m)) zero) with (mul (num c) (den_m I m)) in * by ring.
      apply power_of_term_is; auto. now split.
    + destruct (whole q && _ && _) eqn:W; [| now apply power_of_sum_is].
      apply andb_prop in W as [W _]. apply andb_prop in W as [W L]. apply Z.leb_le in L.
      replace (pw x q) with (pw x (inject_Z (Z.of_nat (Z.to_nat (whole_of q))))); [now apply times_is |].
      rewrite Z2Nat.id by assumption. apply pw_eq. symmetry. now apply whole_of_spec.
Qed.
Lemma exp_of_is I c m : ok_m I m ->
  let g := exp_of c m in
  def I (fst g) /\ ok (den I (fst g)) (snd g) /\ pw (den I (fst g)) (snd g) = exp (mul (num c) (den_m I m)).
Proof.
  intros O. assert (Plain : def I (Exp (reify_m m)) /\ ok (exp (den I (reify_m m))) c /\
    pw (exp (den I (reify_m m))) c = exp (mul (num c) (den_m I m))).
  { destruct (reify_m_is In I m _ (conj O eq_refl)) as [D E]. split; [exact D | split; [apply exp_ok |]].
    now rewrite exp_pw, E. }
  destruct m as [| [[| | | | | | | | | | f [| | | | | a [| | | | | | | | | | | | |] | | | | | | | |] | | |] q] [| t m]];
    try exact Plain.
  cbn [exp_of]. destruct (Z.eqb f log && Qeq_bool q 1) eqn:E; [| exact Plain]. clear Plain.
  apply andb_prop in E as [E Q]. apply Z.eqb_eq in E. subst f. apply Qeq_bool_eq in Q.
  destruct O as [[[[Da _] H] _] _]. specialize (H eq_refl).
  change (above (den I a)) in H. cbn [fst snd]. split; [exact Da | split; [now apply above_ok |]].
  change (den_m I [(Fn log (Cons a Nil), q)]) with (mul (pw (fn log [den I a]) q) one).
  rewrite (pw_eq A _ _ _ Q), pw_1.
  replace (mul (num c) (mul (fn log [den I a]) one)) with (mul (num c) (fn log [den I a])) by ring.
  rewrite <- log_pw by apply H. symmetry. apply exp_log; now apply above_pw.
Qed.
Lemma pexp_is I p x : is_p I p x -> is_p I (pexp p) (exp x).
Proof.
  intros [O <-]. unfold pexp. replace (exp (den_p In I p)) with (mul (num 1) (exp (den_p In I p)))
    by (rewrite num_1; ring). apply term_is.
  induction p as [| [c m] p IH]; [split; cbn; auto; now rewrite exp_0 |].
  destruct O as [Om O]. destruct (exp_of_is I c m Om) as (D & K & E).
  change (den_p In I ((c, m) :: p)) with (add (mul (num c) (den_m I m)) (den_p In I p)).
  rewrite exp_add, <- E. apply put_is; auto.
Qed.

(** *** Logarithms *)
Lemma log_of_is I e : def I e -> above (den I e) -> is_p I (log_of e) (fn log [den I e]).
Proof.
  intros D P. apply (atom_is In I (Fn log (Cons e Nil))). split; [split; [exact D | exact Logic.I] |].
  intros _. exact P.
Qed.
Lemma log_of_factor_is I e q : positive_f (e, q) = true -> def I e -> ok (den I e) q ->
  is_p I (log_of_factor (e, q)) (fn log [pw (den I e) q]).
Proof.
  intros H D K. pose proof (positive_f_is I e q H D K) as P. rewrite log_pw by apply P.
  assert (G : is_p I (pscale q [] (log_of e)) (mul (num q) (fn log [den I e]))).
  { replace (mul (num q) (fn log [den I e])) with (mul (mul (num q) one) (fn log [den I e])) by ring.
    apply pscale_is; [now split | now apply log_of_is]. }
  destruct e; try exact G. clear G. unfold log_of_factor. cbn [fst snd].
  change (den I (Exp e)) with (exp (den I e)). rewrite log_exp. replace (mul (num q) (den I e)) with (mul (mul (num q) (den I e)) (mul (num 1) one)) by (rewrite num_1; ring).
  apply pscale_is; [now apply factors_is |]. apply term_is. now split.
Qed.
Lemma log_one : fn log [one : A] = zero.
Proof. rewrite <- exp_0. apply log_exp. Qed.
Lemma logs_is I m : ok_m I m -> forallb positive_f m = true -> is_p I (logs m) (fn log [den_m I m]).
Proof.
  induction m as [| [e q] m IH]; cbn [forallb]; intros O H; [split; [exact Logic.I | cbn; now rewrite log_one] |].
  destruct O as [[D K] O]. apply andb_prop in H as [H H'].
  change (den_m I ((e, q) :: m)) with (mul (pw (den I e) q) (den_m I m)).
  assert (P : above (pw (den I e) q)) by (apply above_pw; now apply (positive_f_is I e q)).
  pose proof (positive_m_is I m O H') as P'.
  rewrite log_mul by (apply P || apply P'). apply padd_is; [now apply log_of_factor_is | now apply IH].
Qed.
Lemma plog_is I p x : is_p I p x -> above x -> is_p I (plog p) (fn log [x]).
Proof.
  intros P Ax. unfold plog.
  pose proof (ok_filter I positive_f _ (ok_candidates I p x P)) as Of.
  destruct (share_is I (filter positive_f (flat_map snd p)) [] p one x Of (conj Logic.I eq_refl) P) as (y & z & M & R & S & _).
  destruct (share _ [] p) as [common rest]. cbn [fst snd] in M, R.
  destruct (forallb positive_f common) eqn:Fc; cbn [negb].
  2: { destruct (reify_is In I p x P) as [D E]. rewrite <- E. apply log_of_is; auto. now rewrite E. }
  destruct M as [Oc Ec]. pose proof (positive_m_is I common Oc Fc) as Ay. rewrite Ec in Ay.
  assert (Sx : x = mul y z) by (rewrite <- S; ring).
  assert (Az : above z) by (apply (above_divided y); auto; now rewrite <- Sx).
  pose proof (logs_is I common Oc Fc) as Lc. rewrite Ec in Lc.
  assert (G : is_p I (padd (logs common) (log_of (reify rest))) (fn log [x])).
  { rewrite Sx, log_mul by (apply Ay || apply Az). apply padd_is; auto.
    destruct (reify_is In I rest z R) as [D E]. rewrite <- E. apply log_of_is; auto. now rewrite E. }
  destruct rest as [| [c [| t m]] [| u p']]; try exact G.
  destruct (Qeq_bool c 1) eqn:C; [| exact G]. apply Qeq_bool_eq in C.
  destruct R as [_ R]. cbn in R. rewrite (num_eq A _ _ C), num_1 in R.
  replace x with y; auto. rewrite Sx, <- R. ring.
Qed.
End Denotation.
