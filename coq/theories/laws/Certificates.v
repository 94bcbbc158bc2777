(** * Certificates: equations that hold in every structure

    The normal forms of both sides are subtracted, and denominators multiplied out.  If nothing is left,
    the sides are equal: for all inputs, sizes and indices at which both are defined. *)

From Coq Require Import List Bool ZArith QArith Qround Ring Lia.
Import ListNotations.
From PyPM.laws Require Import Structures Expressions Polynomials Powers Functions Sums.

#[local] Arguments Qred : simpl never.

(** ** Denominators *)
(** A power of a sum, its whole part multiplied out: *)
Definition grown (e : expr) (a : Q) : poly :=
  let w := Qfloor a in
  let r := Qred (a - inject_Z w) in
  pmul (times (Z.to_nat w) (norm e)) [(1, if Qeq_bool r 0 then [] else [(e, r)])].
Definition cleared (e : expr) (l : Q) (p : poly) : poly :=
  fold_right (fun t r =>
    padd (pmul [(fst t, without e (snd t))] (grown e (exponent e (snd t) - l))) r) [] p.

Fixpoint denominator (fs : mono) (p : poly) : option (expr * Q) :=
  match fs with
  | [] => None
  | (e, q) :: fs =>
      let l := if negative q then q else 0 in
      if is_sum e && (negative q || Qle_bool 1 q) && forallb (fun t => Qle_bool l (exponent e (snd t))) p
      then Some (e, l) else denominator fs p
  end.
Fixpoint is_zero (fuel : nat) (p : poly) : bool :=
  match p, fuel with
  | [], _ => true
  | _, O => false
  | _, S fuel =>
      match denominator (flat_map snd p) p with
      | None => false
      | Some (e, l) => is_zero fuel (cleared e l p)
      end
  end.

(** ** Comparisons with zero

    What has a negative power is not zero, nor is what it is a factor of, up to other such factors. *)
Fixpoint tests (e : expr) : list expr :=
  match e with
  | Num _ | Size _ | Var _ | Nil => []
  | Read _ a | Pow a _ | Exp a => tests a
  | Fn f a => match a with Cons b Nil => if Z.eqb f 1 then [b] else [] | _ => [] end ++ tests a
  | Cons a b | Add a b | Mul a b | Sum _ a b | Max _ a b => tests a ++ tests b
  | Each _ n a b => tests n ++ tests a ++ tests b
  end.
Fixpoint replaced (t c e : expr) : expr :=
  let r := replaced t c in
  if same t e then c else
  match e with
  | Num _ | Size _ | Var _ | Nil => e
  | Read x a => Read x (r a)
  | Cons a b => Cons (r a) (r b)
  | Add a b => Add (r a) (r b)
  | Mul a b => Mul (r a) (r b)
  | Pow a q => Pow (r a) q
  | Exp a => Exp (r a)
  | Fn f a => Fn f (r a)
  | Sum v n a => Sum v (r n) (if mem v t then a else r a)
  | Max v n a => Max v (r n) (if mem v t then a else r a)
  | Each v n a b => Each v (r n) (if mem v t then a else r a) (r b)
  end.
(** Two sums over one range as sums of what they add at an index: if truth values add up to zero, each
    is zero, and so is a sum that has each of them as a factor. *)
Definition range_of (p : poly) : option expr :=
  match p with
  | (_, [(Sum _ n _, _)]) :: _ | _ :: (_, [(Sum _ n _, _)]) :: _ => Some n
  | _ => None
  end.
Fixpoint gathered (w : Z) (n : expr) (p : poly) : option poly :=
  match p with
  | [] => Some []
  | (c, [(e, q)]) :: p =>
      match gathered w n p with
      | None => None
      | Some r =>
          if negb (Qeq_bool q 1) then None
          else if same e n then Some (plus c [] r)
          else match e with
          | Sum v k b =>
              if same k n && negb (mem w b) then Some (padd (pscale c [] (sorted (swap v w b))) r) else None
          | _ => None
          end
      end
  | _ => None
  end.
Definition is_nil (p : poly) : bool := match p with [] => true | _ => false end.
Definition forces (p q : poly) : bool :=
  match p with
  | [(c, [(t, e)])] => Qeq_bool c 1 && Qeq_bool e 1 && is_truth (t, e) && is_nil (when_false t q)
  | [(c, []); (d, [(t, e)])] =>
      Qeq_bool c 1 && Qeq_bool d (-1) && Qeq_bool e 1 && is_truth (t, e) && is_nil (when_true t q)
  | _ => false
  end.
Definition vanishes (x y : expr) : bool :=
  let w := (Z.max (highest x) (highest y) + 1)%Z in
  match range_of (sorted x) with
  | None => false
  | Some n =>
      match gathered w n (sorted x), gathered w n (sorted y) with
      | Some p, Some q => forces p q
      | _, _ => false
      end
  end.
Definition known (facts : list expr) (e : expr) : bool := existsb (fun y => same e y || vanishes e y) facts.
Definition apart_f (facts : list expr) (f : factor) : bool :=
  negative (snd f) || positive (fst f) || known facts (fst f).
Definition base (p : poly) : expr := reify (pscale (/ leading p) [] p).
Definition apart (facts : list expr) (p : poly) : bool :=
  let (common, rest) := share (flat_map snd p) [] p in
  forallb (apart_f facts) common && negb (Qeq_bool (leading rest) 0) &&
  (positive (base rest) || known facts (base rest)).
(** What divides, or has a logarithm, at indices that are not bound, and not in a branch that may not be
    taken: those are written with a comparison of a truth value. *)
Fixpoint has_truth (e : expr) : bool :=
  match e with Fn f _ => truth f | Add a b | Mul a b => has_truth a || has_truth b | _ => false end.
Fixpoint branch (e : expr) : bool :=
  match e with
  | Fn f (Cons c Nil) => Z.eqb f 0 && has_truth c
  | Add (Mul c (Num _)) (Num _) => branch c
  | _ => false
  end.
Fixpoint divisors (e : expr) : list expr :=
  match e with
  | Num _ | Size _ | Var _ | Nil => []
  | Read _ a | Exp a => divisors a
  | Fn f a => match a with Cons d Nil => if Z.eqb f log then [d] else [] | _ => [] end ++ divisors a
  | Pow a q => (if negative q then [a] else []) ++ divisors a
  | Mul a b => if branch a then [] else divisors a ++ divisors b
  | Cons a b | Add a b => divisors a ++ divisors b
  | Sum v n a | Max v n a => divisors n ++ filter (fun d => negb (mem v d)) (divisors a)
  | Each v n a b => divisors n ++ filter (fun d => negb (mem v d)) (divisors a) ++ divisors b
  end.
(** Nor are the factors zero of what is not. *)
Definition parts (p : poly) : list expr :=
  let (common, rest) := share (flat_map snd p) [] p in
  map fst (filter (fun f => negb (Qle_bool (snd f) 0)) common) ++
  if Qeq_bool (leading rest) 0 then [] else [base rest].
Definition facts_of (ds : list expr) : list expr := flat_map (fun d => parts (norm d)) ds.
(** What an expression is where a comparison with zero holds, which makes a polynomial zero: up to a
    multiple of that, by which it gets a given leading number *)
Definition where_zero (t : expr) (z : poly) (aim : poly) (e : expr) : poly :=
  let yes := norm (replaced (Fn 1 (Cons t Nil)) (Num 1) e) in
  if Qeq_bool (leading z) 0 then yes
  else padd yes (pscale (- (leading (padd yes (opposite aim)) / leading z)) [] z).
Definition contradicts (t y : expr) : bool := is_nil (where_zero t (norm t) [] y).
Definition decided (facts : list expr) (e : expr) : list (expr * expr) :=
  map (fun t => (Fn 1 (Cons t Nil), Num 0))
    (filter (fun t => apart facts (norm t) || existsb (contradicts t) facts) (tests e)) ++
  flat_map (fun y =>
    match first_truth (sorted y) with
    | Some (m, _) =>
        if is_nil (when_false m (sorted y)) then [(m, Num 1)]
        else if is_nil (when_true m (sorted y)) then [(m, Num 0)] else []
    | None => []
    end) facts.
Definition decide (facts : list expr) (e : expr) : expr :=
  fold_right (fun t => replaced (fst t) (snd t)) e (decided facts e).
(** A comparison with zero is left out of what is the same whether it holds or not. *)
Fixpoint open_tests (e : expr) : list expr :=
  match e with
  | Num _ | Size _ | Var _ | Nil | Each _ _ _ _ => []
  | Read _ a | Exp a | Pow a _ => open_tests a
  | Fn f a => match a with Cons b Nil => if Z.eqb f 1 then [b] else [] | _ => [] end ++ open_tests a
  | Cons a b | Add a b | Mul a b => open_tests a ++ open_tests b
  | Sum v n a | Max v n a => open_tests n ++ filter (fun d => negb (mem v d)) (open_tests a)
  end.
(** Where logarithms add up to zero, a product is one. *)
Definition zero_of (t : expr) : poly :=
  let e := pexp (norm t) in
  if existsb (fun f => is_exp (fst f)) (flat_map snd e) then norm t else padd (norm (reify e)) (number (-1)).
Definition without_test (t e : expr) : expr :=
  let no := norm (replaced (Fn 1 (Cons t Nil)) (Num 0) e) in
  if same (reify no) (reify (where_zero t (zero_of t) no e)) then reify no else e.
Definition merged (e : expr) : expr := fold_left (fun e t => without_test t e) (open_tests e) e.
(** In a sum, by what divides at its index *)
Fixpoint decided_within (e : expr) : expr :=
  match e with
  | Num _ | Size _ | Var _ | Nil => e
  | Read x a => Read x (decided_within a)
  | Cons a b => Cons (decided_within a) (decided_within b)
  | Add a b => Add (decided_within a) (decided_within b)
  | Mul a b => Mul (decided_within a) (decided_within b)
  | Pow a q => Pow (merged (decided_within a)) q
  | Exp a => Exp (decided_within a)
  | Fn f a => Fn f (decided_within a)
  | Sum v n a => Sum v n (decide (facts_of (divisors a)) (decided_within a))
  | Max v n a => Max v n (decided_within a)
  | Each _ _ _ _ => e
  end.
Definition settled (facts : list expr) (e : expr) : expr := decided_within (decide facts e).

Definition rounds : nat := 8.
Definition difference (a b : expr) : poly := padd (norm a) (pscale (-1) [] (norm b)).
Definition accepted (a b : expr) : bool :=
  let facts := facts_of (divisors a ++ divisors b) in
  is_zero rounds (difference a b) || is_zero rounds (difference (settled facts a) (settled facts b)).

(** ** They are right *)
Section Denotation.
Context {A : structure} (Inp : inputs A).
Add Ring A_ring : (ring_laws A).
Notation den := (den Inp).
Notation dens := (dens Inp).
Notation def := (def Inp).
Notation den_m := (den_m Inp).
Notation ok_m := (ok_m Inp).
Notation is_p := (is_p Inp).

Lemma grown_is I e a : def I e -> ok (den I e) a -> 0 <= a -> is_p I (grown e a) (pw (den I e) a).
Proof.
  intros D K P. unfold grown. cbv zeta. set (w := Qfloor a). set (r := Qred (a - inject_Z w)).
  assert (W : (0 <= w)%Z) by (unfold w; change 0%Z with (Qfloor 0); now apply Qfloor_resp_le).
  assert (L : inject_Z w <= a) by apply Qfloor_le.
  assert (Kw : ok (den I e) (inject_Z w)).
  { apply ok_whole; [apply whole_inject |]. change 0 with (inject_Z 0). now rewrite <- Zle_Qle. }
  assert (S := pw_minus (den I e) a (inject_Z w) K Kw L). rewrite <- (pw_red _ (a - inject_Z w)) in S.
  assert (Kr : ok (den I e) r) by now apply ok_red, ok_minus.
  fold r in S. rewrite S. apply pmul_is.
  - rewrite <- (Z2Nat.id w W) at 2. apply times_is. now apply norm_is.
  - destruct (Qeq_bool r 0) eqn:Z.
    + apply Qeq_bool_eq in Z. rewrite (pw_eq A _ _ _ Z), pw_0. split; cbn; auto. rewrite num_1. ring.
    + split; cbn; auto. rewrite num_1. ring.
Qed.
Lemma cleared_is I e l p x : def I e -> ok (den I e) l -> ok (den I e) (- l) -> is_p I p x ->
  forallb (fun t => Qle_bool l (exponent e (snd t))) p = true ->
  is_p I (cleared e l p) (mul (pw (den I e) (- l)) x).
Proof.
  intros D K K' [O <-]. induction p as [| [c m] p IH]; cbn [cleared fold_right forallb fst snd]; intros L.
  - split; cbn; auto. ring.
  - destruct O as [Om O]. apply andb_prop in L as [L L']. apply Qle_bool_iff in L.
    destruct (exponent_is Inp I e m Om) as (Ke & Ow & S).
    replace (mul (pw (den I e) (- l)) (den_p Inp I ((c, m) :: p))) with
      (add (mul (mul (num c) (den_m I (without e m))) (pw (den I e) (exponent e m - l)))
        (mul (pw (den I e) (- l)) (den_p Inp I p))).
    + apply padd_is; [| now apply IH]. apply pmul_is; [apply term_is; now split |].
      apply grown_is; auto; [now apply ok_minus | now apply (proj1 (Qle_minus_iff l _))].
    + change (den_p Inp I ((c, m) :: p)) with (add (mul (num c) (den_m I m)) (den_p Inp I p)).
      assert (E : pw (den I e) (exponent e m - l) = mul (pw (den I e) (exponent e m)) (pw (den I e) (- l)))
        by now apply pw_plus.
      rewrite E, S. ring.
Qed.
Lemma denominator_is I fs p e l : ok_m I fs -> denominator fs p = Some (e, l) ->
  def I e /\ ok (den I e) l /\ ok (den I e) (- l) /\
  forallb (fun t => Qle_bool l (exponent e (snd t))) p = true.
Proof.
  induction fs as [| [f q] fs IH]; cbn [denominator]; [discriminate |]. intros [[D K] O].
  destruct (_ && _ && _) eqn:C; [| now apply IH]. intros [= -> <-].
  apply andb_prop in C as [_ C]. split; [exact D |].
  destruct (negative q) eqn:N; [| split; [apply ok_0 | split; [apply ok_0 | exact C]]].
  split; [exact K | split; [| exact C]]. apply negative_lt in N. split.
  - intros H. exfalso. apply (Qlt_irrefl 0). apply Qlt_trans with (- q); auto.
    apply (Qopp_lt_compat q 0) in N. exact N.
  - intros H. apply K. destruct (whole q) eqn:W; auto. now rewrite (whole_opp _ W) in H.
Qed.
Lemma is_zero_is I fuel : forall p x, is_p I p x -> is_zero fuel p = true -> x = zero.
Proof.
  induction fuel as [| fuel IH]; intros [| t p] x P; cbn [is_zero]; try discriminate.
  - intros _. now destruct P.
  - intros _. now destruct P.
  - destruct (denominator _ _) as [[e l] |] eqn:E; [| discriminate]. intros Z.
    destruct (denominator_is I _ _ e l (ok_candidates Inp I _ x P) E) as (D & K & K' & L).
    pose proof (IH _ _ (cleared_is I e l _ x D K K' P L) Z) as H.
    transitivity (mul (mul (pw (den I e) l) (pw (den I e) (- l))) x).
    + rewrite pw_inverse by assumption. ring.
    + transitivity (mul (pw (den I e) l) (mul (pw (den I e) (- l)) x)); [ring |]. rewrite H. ring.
Qed.

(** *** Comparisons with zero *)
Lemma den_read I x a : den I (Read x a) = tensor Inp x (dens I a).
Proof. reflexivity. Qed.
Lemma den_fn I f a : den I (Fn f a) = fn f (dens I a).
Proof. reflexivity. Qed.
Lemma dens_cons I a b : dens I (Cons a b) = den I a :: dens I b.
Proof. reflexivity. Qed.
Lemma dens_each I v n a b : dens I (Each v n a b) =
  flat_map (fun i => dens (set I v (at_index i)) a) (seq 0 (count (den I n))) ++ dens I b.
Proof. reflexivity. Qed.
Lemma replaced_is t c : (forall v, mem v c = false) -> forall e I, (def I t -> def I c /\ den I c = den I t /\ dens I c = dens I t) ->
  def I e -> def I (replaced t c e) /\ den I (replaced t c e) = den I e /\ dens I (replaced t c e) = dens I e.
Proof.
  intros Closed. 
  assert (Under : forall v I x, mem v t = false -> (def I t -> def I c /\ den I c = den I t /\ dens I c = dens I t) ->
    def (set I v x) t -> def (set I v x) c /\ den (set I v x) c = den (set I v x) t /\ dens (set I v x) c = dens (set I v x) t).
  { intros v I x M H D. apply (def_without Inp I v x t M) in D. destruct (H D) as (Dc & E & L).
    assert (Same : forall e, mem v e = false -> den (set I v x) e = den I e /\ dens (set I v x) e = dens I e).
    { intros e N. apply den_ext. intros u U. unfold set. destruct (Z.eqb_spec u v); congruence. }
    destruct (Same t M) as [E1 L1], (Same c (Closed v)) as [E2 L2]. rewrite E1, E2, L1, L2.
    split; [now apply def_without | now split]. }
  assert (Hit : forall e I, (def I t -> def I c /\ den I c = den I t /\ dens I c = dens I t) -> same t e = true ->
    def I e -> def I c /\ den I c = den I e /\ dens I c = dens I e).
  { intros e I H S D. apply same_eq in S as <-. auto. }
  assert (Body : forall v n a I, (forall I, (def I t -> def I c /\ den I c = den I t /\ dens I c = dens I t) -> def I a ->
      def I (replaced t c a) /\ den I (replaced t c a) = den I a /\ dens I (replaced t c a) = dens I a) ->
    (def I t -> def I c /\ den I c = den I t /\ dens I c = dens I t) ->
    (forall i, (i < n)%nat -> def (set I v (at_index i)) a) ->
    let a' := if mem v t then a else replaced t c a in
    forall i, (i < n)%nat -> def (set I v (at_index i)) a' /\ den (set I v (at_index i)) a' = den (set I v (at_index i)) a /\
      dens (set I v (at_index i)) a' = dens (set I v (at_index i)) a).
  { intros v n a I IH H D a' i L. unfold a'. destruct (mem v t) eqn:M; [split; [now apply D | now split] |].
    apply IH; [now apply Under | now apply D]. }
  induction e; intros I H D; cbn [replaced]; cbv zeta;
    (match goal with |- context [same t ?e] => destruct (same t e) eqn:S; [now apply (Hit e) |] end); try (now repeat split);
    clear S.
  - destruct (IHe I H D) as (D' & _ & L). rewrite !den_read, L. now repeat split.
  - destruct D as [Da Db]. destruct (IHe1 I H Da) as (D1 & E1 & _), (IHe2 I H Db) as (D2 & _ & L2). rewrite !dens_cons, E1, L2. now repeat split.
  - destruct D as [Da Db]. destruct (IHe1 I H Da) as (D1 & E1 & _), (IHe2 I H Db) as (D2 & E2 & _). cbn. rewrite E1, E2. now repeat split.
  - destruct D as [Da Db]. destruct (IHe1 I H Da) as (D1 & E1 & _), (IHe2 I H Db) as (D2 & E2 & _). cbn. rewrite E1, E2. now repeat split.
  - destruct D as [Da K]. destruct (IHe I H Da) as (D1 & E1 & _). cbn. rewrite E1. now repeat split; try apply K.
  - destruct (IHe I H D) as (D' & E & _). cbn. rewrite E. now repeat split.
  - destruct D as [Da K]. destruct (IHe I H Da) as (D1 & _ & L1). rewrite !den_fn, L1. split; [split; [exact D1 | now rewrite L1] | now split].
  - destruct D as (Dn & Sz & K). destruct (IHe1 I H Dn) as (D1 & E1 & _). pose proof (Body v _ e2 I IHe2 H K) as B. cbv zeta in B.
    cbn. rewrite E1. repeat split; auto; try apply Sz; [intros i L; now apply B |]. apply sum_ext. intros i L. now apply B.
  - destruct D as (Dn & Sz & K). destruct (IHe1 I H Dn) as (D1 & E1 & _). pose proof (Body v _ e2 I IHe2 H K) as B. cbv zeta in B.
    cbn. rewrite E1. repeat split; auto; try apply Sz; [intros i L; now apply B |]. apply greatest_ext. intros i L. now apply B.
  - destruct D as ((Dn & Sz & K) & Db). destruct (IHe1 I H Dn) as (D1 & E1 & _), (IHe3 I H Db) as (D3 & _ & L3).
    pose proof (Body v _ e2 I IHe2 H K) as B. cbv zeta in B. rewrite !dens_each, E1, L3.
    split; [split; [split; [exact D1 | rewrite E1; split; [exact Sz | intros i L; now apply B]] | exact D3] | split; [reflexivity |]]. f_equal. apply flat_map_seq. intros i L. now apply B.
Qed.
Lemma apart_mul (x y : A) : x <> zero -> y <> zero -> mul x y <> zero.
Proof.
  intros N N' E. apply N'. assert (K : mul (pw x 1) (pw x (- (1))) = one).
  { apply pw_inverse; [apply ok_1 | now apply ok_whole_apart]. }
  rewrite pw_1 in K. transitivity (mul (mul x (pw x (- (1)))) y); [rewrite K; ring |].
  transitivity (mul (mul x y) (pw x (- (1)))); [ring | rewrite E; ring].
Qed.
Lemma apart_pw (x : A) q : x <> zero -> ok x q -> pw x q <> zero.
Proof.
  intros N K. apply pw_apart; [exact K |]. split; [auto |]. intros W. apply K.
  destruct (whole q) eqn:V; auto. now rewrite (whole_opp _ V) in W.
Qed.
Definition divides I (d : expr) : Prop := def I d /\ den I d <> zero.
Definition facts_hold I (facts : list expr) : Prop := Forall (divides I) facts.
Lemma sum_none n (f : nat -> A) : (forall i, (i < n)%nat -> nn (f i)) -> sum n f = zero ->
  forall i, (i < n)%nat -> f i = zero.
Proof.
  induction n as [| n IH]; intros P E i L; [lia |]. cbn [sum] in E.
  assert (Pn : nn (f n)) by auto. assert (Ps : nn (sum n f)) by (apply sum_nn; auto).
  destruct (Nat.eq_dec i n) as [-> | N].
  - apply (nn_zero A (f n) (sum n f)); auto. rewrite <- E. ring.
  - apply IH; [auto | | lia]. now apply (nn_zero A (sum n f) (f n)).
Qed.
Definition ranged I (n : expr) : Prop := def I n /\ sized (den I n).
Lemma range_of_is I p x n : is_p I p x -> range_of p = Some n -> ranged I n.
Proof.
  assert (H : forall v n a q m, ok_m I ((Sum v n a, q) :: m) -> ranged I n).
  { intros v k a q m [[(D & S & _) _] _]. now split. }
  intros [O _] E. unfold range_of in E.
  destruct p as [| [c m] p]; [discriminate |]. destruct O as [Om Op].
  assert (Next : match p with (_, [(Sum _ n _, _)]) :: _ => Some n | _ => None end = Some n -> ranged I n).
  { destruct p as [| [d k] p]; [discriminate |]. destruct Op as [Ok _]. destruct k as [| [e q] [| g k]]; try discriminate;
      destruct e; try discriminate. intros [= ->]. now apply (H _ _ _ _ _ Ok). }
  destruct m as [| [e q] [| g m]]; try (now apply Next); destruct e; try (now apply Next).
  injection E as ->. now apply (H _ _ _ _ _ Om).
Qed.
Lemma gathered_is I w n : ranged I n -> forall p q x, is_p I p x -> gathered w n p = Some q ->
  exists f, x = sum (count (den I n)) f /\
    forall i, (i < count (den I n))%nat -> is_p (set I w (at_index i)) q (f i).
Proof.
  intros [Dn Sn]. induction p as [| [c m] p IH]; intros q x [O <-] E.
  - injection E as <-. exists (fun _ => zero). split; [symmetry; apply sum_zero | now split].
  - cbn [gathered] in E. destruct m as [| [e r] [| g m]]; try discriminate. destruct O as [[[De Ke] _] O].
    destruct (gathered w n p) as [q' |]; [| discriminate]. destruct (IH q' _ (conj O eq_refl) eq_refl) as (f & S & F).
    destruct (Qeq_bool r 1) eqn:R; [| discriminate]. apply Qeq_bool_eq in R. cbn [negb] in E.
    change (den_p Inp I ((c, [(e, r)]) :: p)) with (add (mul (num c) (mul (pw (den I e) r) one)) (den_p Inp I p)).
    rewrite (pw_eq A _ _ _ R), pw_1, S. destruct (same e n) eqn:N.
    + injection E as <-. apply same_eq in N as ->. exists (fun i => add (mul (num c) one) (f i)). split.
      * rewrite sum_add, sum_constant. destruct Sn as [Sn _]. rewrite <- Sn. ring.
      * intros i L. apply plus_is; [now split | now apply F].
    + destruct e as [| | | | | | | | | | | v k b | |]; try discriminate.
      destruct (same k n && negb (mem w b)) eqn:C; [| discriminate]. injection E as <-. apply andb_prop in C as [C M].
      apply same_eq in C as ->. rewrite negb_true_iff in M.
      destruct (sum_renamed Inp v w n b M I De) as [(_ & _ & Dw) E]. rewrite <- E.
      exists (fun i => add (mul (mul (num c) one) (den (set I w (at_index i)) (swap v w b))) (f i)). split.
      * rewrite sum_add, sum_mul. cbn. ring.
      * intros i L. apply padd_is; [| now apply F]. apply pscale_is; [now split |]. now apply sorted_is, Dw.
Qed.
Lemma is_nil_is I p x : is_p I p x -> is_nil p = true -> x = zero.
Proof. intros [_ <-]. now destruct p. Qed.
Lemma forces_is I p q x y : is_p I p x -> is_p I q y -> forces p q = true -> nn x /\ (x = zero -> y = zero).
Proof.
  intros P Q H. unfold forces in H. destruct p as [| [c [| [t e] [| g m]]] p]; try discriminate;
    [destruct p as [| [d [| [t e] [| g k]]] [| u p]]; try discriminate | destruct p; try discriminate].
  - apply andb_prop in H as [H N]. apply andb_prop in H as [H T]. apply andb_prop in H as [H E]. apply andb_prop in H as [C D].
    apply Qeq_bool_eq in C, D, E. destruct P as [(_ & [[Dt _] _] & _) <-]. cbn.
    rewrite (num_eq A _ _ C), (num_eq A _ _ D), (pw_eq A _ _ _ E), num_1, pw_1, num_minus.
    assert (B : den I t = zero \/ den I t = one) by (destruct t; try discriminate; now apply fn_truth).
    destruct B as [B | B]; rewrite B.
    + replace (add (mul one one) (add (mul (opp one) (mul zero one)) zero)) with (one : A) by ring.
      split; [apply above_one |]. intros Z. now destruct (one_zero A).
    + replace (add (mul one one) (add (mul (opp one) (mul one one)) zero)) with (zero : A) by ring.
      split; [rewrite <- num_0; apply num_nn, Qle_refl |]. intros _. now apply (is_nil_is I _ _ (when_true_is Inp I t q y Q B)).
  - apply andb_prop in H as [H N]. apply andb_prop in H as [H T]. apply andb_prop in H as [C E].
    apply Qeq_bool_eq in C, E. destruct P as [([[Dt _] _] & _) <-]. cbn.
    rewrite (num_eq A _ _ C), (pw_eq A _ _ _ E), num_1, pw_1.
    assert (B : den I t = zero \/ den I t = one) by (destruct t; try discriminate; now apply fn_truth).
    destruct B as [B | B]; rewrite B.
    + replace (add (mul one (mul zero one)) zero) with (zero : A) by ring.
      split; [rewrite <- num_0; apply num_nn, Qle_refl |]. intros _. now apply (is_nil_is I _ _ (when_false_is Inp I t q y Q B)).
    + replace (add (mul one (mul one one)) zero) with (one : A) by ring.
      split; [apply above_one |]. intros Z. now destruct (one_zero A).
Qed.
Lemma vanishes_is I x y : def I x -> def I y -> vanishes x y = true -> den I x = zero -> den I y = zero.
Proof.
  intros Dx Dy H Z. unfold vanishes in H. cbv zeta in H. set (w := (Z.max (highest x) (highest y) + 1)%Z) in *.
  pose proof (sorted_is Inp x I Dx) as P. pose proof (sorted_is Inp y I Dy) as Q.
  destruct (range_of (sorted x)) as [n |] eqn:R; [| discriminate]. pose proof (range_of_is I _ _ n P R) as Rn.
  destruct (gathered w n (sorted x)) as [p |] eqn:Gp; [| discriminate].
  destruct (gathered w n (sorted y)) as [q |] eqn:Gq; [| discriminate].
  destruct (gathered_is I w n Rn _ p _ P Gp) as (f & Sf & F), (gathered_is I w n Rn _ q _ Q Gq) as (g & Sg & G).
  rewrite Sf in Z. rewrite Sg, <- (sum_zero (count (den I n))). apply sum_ext. intros i L.
  assert (K : forall i, (i < count (den I n))%nat -> nn (f i) /\ (f i = zero -> g i = zero)).
  { intros j Lj. now apply (forces_is (set I w (at_index j)) p q); [apply F | apply G |]. }
  apply K; [exact L |]. apply (sum_none (count (den I n)) f); [| exact Z | exact L]. intros j Lj. now apply K.
Qed.
Lemma known_apart I facts e : facts_hold I facts -> def I e -> known facts e = true -> den I e <> zero.
Proof.
  intros F D H. apply existsb_exists in H as (y & M & S). unfold facts_hold in F. rewrite Forall_forall in F.
  destruct (F y M) as [Dy N]. apply orb_prop in S as [S | S]; [now apply same_eq in S as -> |].
  intros Z. now apply N, (vanishes_is I e y).
Qed.
Lemma apart_f_is I facts e q : facts_hold I facts -> def I e -> ok (den I e) q -> apart_f facts (e, q) = true ->
  den I e <> zero.
Proof.
  intros F D K H. unfold apart_f in H. cbn [fst snd] in H. apply orb_prop in H as [H | H]; [apply orb_prop in H as [H | H] |].
  - now apply K, negative_lt.
  - now apply (positive_is Inp e I).
  - now apply (known_apart I facts).
Qed.
Lemma apart_m_is I facts m : facts_hold I facts -> ok_m I m -> forallb (apart_f facts) m = true -> den_m I m <> zero.
Proof.
  intros F. induction m as [| [e q] m IH]; cbn [forallb]; intros O H; [apply one_zero |].
  destruct O as [[D K] O]. apply andb_prop in H as [H H'].
  change (mul (pw (den I e) q) (den_m I m) <> zero). apply apart_mul; [| now apply IH].
  apply apart_pw; [now apply (apart_f_is I facts e q) | exact K].
Qed.
Lemma base_is I p x : is_p I p x -> Qeq_bool (leading p) 0 = false ->
  def I (base p) /\ x = mul (num (leading p)) (den I (base p)).
Proof.
  intros P L. apply Qeq_bool_neq in L. unfold base.
  assert (R : is_p I (pscale (/ leading p) [] p) (mul (mul (num (/ leading p)) one) x)) by (apply pscale_is; [now split | exact P]).
  destruct (reify_is Inp I _ _ R) as [D ->]. split; [exact D |].
  transitivity (mul (mul (num (leading p)) (num (/ leading p))) x); [| ring].
  rewrite <- num_mult, (num_eq A (leading p * / leading p) 1), num_1 by now apply Qmult_inv_r. ring.
Qed.
Lemma apart_is I facts p x : facts_hold I facts -> is_p I p x -> apart facts p = true -> x <> zero.
Proof.
  intros F P H. unfold apart in H.
  destruct (share_is Inp I (flat_map snd p) [] p one x (ok_candidates Inp I p x P) (conj Logic.I eq_refl) P) as (y & z & M & R & S & _).
  destruct (share (flat_map snd p) [] p) as [common rest]. cbn [fst snd] in M, R.
  apply andb_prop in H as [H Hr]. apply andb_prop in H as [Hc Hl]. rewrite negb_true_iff in Hl.
  assert (E : x = mul y z) by (rewrite <- S; ring). rewrite E. destruct M as [Oc <-].
  apply apart_mul; [now apply (apart_m_is I facts) |].
  destruct (base_is I rest z R Hl) as [D ->]. apply Qeq_bool_neq in Hl.
  apply apart_mul; [now apply num_not_0 |]. apply orb_prop in Hr as [O | O];
    [now apply (positive_is Inp _ I) | now apply (known_apart I facts)].
Qed.
Lemma over_range (P : _ -> expr -> Prop) (found : expr -> list expr) :
  (forall I v x d, mem v d = false -> P (set I v x) d -> P I d) ->
  forall v n a I, (forall I, def I a -> Forall (P I) (found a)) ->
    def I n /\ sized (den I n) /\ (forall i, (i < count (den I n))%nat -> def (set I v (at_index i)) a) ->
    Forall (P I) (filter (fun d => negb (mem v d)) (found a)).
Proof.
  intros Out v n a I H (_ & [_ S] & K). specialize (H _ (K O S)). apply Forall_forall. intros d M.
  apply filter_In in M as [M N]. rewrite negb_true_iff in N. rewrite Forall_forall in H. now apply (Out I v (at_index O)), H.
Qed.
Lemma divisors_is e : forall I, def I e -> Forall (divides I) (divisors e).
Proof.
  pose proof (over_range divides divisors) as Range.
  specialize (Range (fun I v x d N D => conj (proj1 (def_without Inp I v x d N) (proj1 D))
    (eq_ind _ (fun y => y <> zero) (proj2 D) _ (den_without Inp I v x d N)))).
  induction e; cbn [divisors]; intros I D; try (now constructor); try (now apply IHe).
  - destruct D. apply Forall_app. split; auto.
  - destruct D. apply Forall_app. split; auto.
  - destruct D. destruct (branch e1); [constructor |]. apply Forall_app. split; auto.
  - destruct D as [D K]. apply Forall_app. split; [| auto]. destruct (negative q) eqn:N; constructor; [| constructor].
    split; [exact D |]. now apply K, negative_lt.
  - destruct D as [D K]. apply Forall_app. split; [| now apply IHe].
    destruct e as [| | | | | d l | | | | | | | |]; try constructor. destruct l; try constructor.
    destruct (Z.eqb_spec f log) as [-> |]; constructor; [| constructor]. split; [apply D |]. now apply K.
  - apply Forall_app. split; [apply IHe1; apply D | now apply (Range v e1)].
  - apply Forall_app. split; [apply IHe1; apply D | now apply (Range v e1)].
  - destruct D as [D D']. apply Forall_app. split; [apply IHe1; apply D |]. apply Forall_app. split; [now apply (Range v e1) | auto].
Qed.
Lemma factors_apart I m : ok_m I m -> den_m I m <> zero ->
  facts_hold I (map fst (filter (fun f => negb (Qle_bool (snd f) 0)) m)).
Proof.
  induction m as [| [e q] m IH]; cbn [filter]; intros O N; [constructor |]. destruct O as [[D K] O].
  apply (mul_apart (pw (den I e) q) (den_m I m)) in N as [N N'].
  destruct (negb (Qle_bool (snd (e, q)) 0)) eqn:P; [| now apply IH]. constructor; [| now apply IH].
  cbn [fst snd] in *. split; [exact D |]. intros Z. apply N. rewrite Z. apply pw_zero. rewrite negb_true_iff in P. now apply positive_bool.
Qed.
Lemma parts_is I p x : is_p I p x -> x <> zero -> facts_hold I (parts p).
Proof.
  intros P N. unfold parts.
  destruct (share_is Inp I (flat_map snd p) [] p one x (ok_candidates Inp I p x P) (conj Logic.I eq_refl) P) as (y & z & M & R & S & _).
  destruct (share (flat_map snd p) [] p) as [common rest]. cbn [fst snd] in M, R.
  assert (E : mul y z <> zero) by (rewrite <- S; intros Z; apply N; rewrite <- Z; ring).
  apply mul_apart in E as [Ny Nz]. apply Forall_app. destruct M as [O <-]. split; [now apply factors_apart |].
  destruct (Qeq_bool (leading rest) 0) eqn:L; constructor; [| constructor].
  destruct (base_is I rest z R L) as [D E]. split; [exact D |]. intros Z. apply Nz. rewrite E, Z. ring.
Qed.
Lemma facts_of_is I ds : Forall (divides I) ds -> facts_hold I (facts_of ds).
Proof.
  induction 1 as [| d ds [D N] _ IH]; [constructor |]. apply Forall_app. split; [| exact IH].
  apply (parts_is I (norm d) (den I d)); [now apply norm_is | exact N].
Qed.
Lemma test_is I t c e : den I (Fn 1 (Cons t Nil)) = num c -> def I e ->
  let r := replaced (Fn 1 (Cons t Nil)) (Num c) e in def I r /\ den I r = den I e.
Proof.
  intros E D. destruct (replaced_is (Fn 1 (Cons t Nil)) (Num c) (fun _ => eq_refl) e I) as (D' & E' & _); auto.
  intros _. split; [exact Logic.I | split; [now rewrite E | reflexivity]].
Qed.
Lemma where_zero_is I t z aim e : den I (Fn 1 (Cons t Nil)) = one -> is_p I z zero -> def I e ->
  is_p I (where_zero t z aim e) (den I e).
Proof.
  intros T P D. rewrite <- num_1 in T. destruct (test_is I t 1 e T D) as [D' E]. pose proof (norm_is Inp _ I D') as S.
  rewrite E in S. unfold where_zero. destruct (Qeq_bool (leading z) 0); [exact S |].
  set (k := - (leading _ / leading z)). replace (den I e) with (add (den I e) (mul (mul (num k) one) zero)) by ring.
  apply padd_is; [exact S |]. apply pscale_is; [now split | exact P].
Qed.
Lemma contradicts_is I t y : def I t -> divides I y -> contradicts t y = true -> den I t <> zero.
Proof.
  intros Dt [D N] H Z. apply N. pose proof (norm_is Inp t I Dt) as P. rewrite Z in P.
  assert (T : den I (Fn 1 (Cons t Nil)) = one) by (change (fn 1 [den I t] = one); rewrite Z; apply fn_of_zero).
  pose proof (where_zero_is I t (norm t) [] y T P D) as W. now apply (is_nil_is I _ _ W).
Qed.
Definition decides I (t : expr * expr) : Prop :=
  (forall v, mem v (snd t) = false) /\
  (def I (fst t) -> def I (snd t) /\ den I (snd t) = den I (fst t) /\ dens I (snd t) = dens I (fst t)).
Lemma decides_truth I m c : def I m -> is_truth (m, 1) = true -> den I m = num c -> decides I (m, Num c).
Proof.
  intros D T E. split; [reflexivity |]. intros _. cbn [fst snd]. split; [exact Logic.I |]. split; [now rewrite E |].
  now destruct m.
Qed.
Lemma decided_is I facts e : facts_hold I facts -> Forall (decides I) (decided facts e).
Proof.
  intros F. unfold facts_hold in F. apply Forall_app. split; apply Forall_forall; intros t M.
  - apply in_map_iff in M as (u & <- & M). apply filter_In in M as [M H]. split; [reflexivity |]. cbn [fst snd].
    intros [[Dt _] _]. split; [exact Logic.I | split; [| reflexivity]]. cbn. rewrite num_0, fn_zero; [reflexivity |].
    apply orb_prop in H as [H | H].
    + apply (apart_is I facts (norm u)); auto. now apply norm_is.
    + apply existsb_exists in H as (y & My & H). rewrite Forall_forall in F. apply (contradicts_is I u y); auto.
  - apply in_flat_map in M as (y & My & M). rewrite Forall_forall in F. destruct (F y My) as [Dy N].
    pose proof (sorted_is Inp y I Dy) as P. destruct (first_truth (sorted y)) as [[m q] |] eqn:T; [| destruct M].
    destruct (first_truth_is Inp I _ _ m q P T) as [Dm B]. apply find_some in T as [_ T].
    assert (Z : forall b, is_p I b (den I y) -> is_nil b = true -> False) by (intros b Pb Nb; now apply N, (is_nil_is I b)).
    destruct (is_nil (when_false m (sorted y))) eqn:Nf; [| destruct (is_nil (when_true m (sorted y))) eqn:Nt; [| destruct M]];
      (destruct M as [<- | []]); (apply decides_truth; [exact Dm | exact T |]); destruct B as [B | B]; rewrite B.
    + exfalso. apply (Z _ (when_false_is Inp I m _ _ P B) Nf).
    + symmetry. apply num_1.
    + symmetry. apply num_0.
    + exfalso. apply (Z _ (when_true_is Inp I m _ _ P B) Nt).
Qed.
Definition kept I (a b : expr) : Prop := def I b /\ den I b = den I a /\ dens I b = dens I a.
Lemma decide_is I facts e : facts_hold I facts -> def I e -> kept I e (decide facts e).
Proof.
  intros F D. unfold decide. pose proof (decided_is I facts e F) as T.
  induction T as [| [t c] ts [Closed T] _ IH]; [now repeat split |]. destruct IH as (De & E & L). cbn [fold_right fst snd] in *.
  destruct (replaced_is t c Closed (fold_right (fun t => replaced (fst t) (snd t)) e ts) I T De) as (D' & E' & L').
  split; [exact D' | split; congruence].
Qed.
Lemma open_tests_is e : forall I, def I e -> Forall (def I) (open_tests e).
Proof.
  pose proof (over_range def open_tests (fun I v x d N => proj1 (def_without Inp I v x d N))) as Range.
  induction e; cbn [open_tests]; intros I D; try (now constructor); try (now apply IHe).
  - destruct D. apply Forall_app. split; auto.
  - destruct D. apply Forall_app. split; auto.
  - destruct D. apply Forall_app. split; auto.
  - apply IHe, D.
  - destruct D as [D _]. apply Forall_app. split; [| now apply IHe].
    destruct e as [| | | | | d l | | | | | | | |]; try constructor. destruct l; try constructor.
    destruct (Z.eqb_spec f 1) as [-> |]; constructor; [| constructor]. apply D.
  - apply Forall_app. split; [apply IHe1; apply D | now apply (Range v e1)].
  - apply Forall_app. split; [apply IHe1; apply D | now apply (Range v e1)].
Qed.
Lemma zero_of_is I t : def I t -> den I t = zero -> is_p I (zero_of t) zero.
Proof.
  intros D Z. pose proof (norm_is Inp t I D) as P. rewrite Z in P. unfold zero_of. cbv zeta.
  destruct (existsb _ _); [exact P |]. pose proof (pexp_is Inp I _ _ P) as E. rewrite exp_0 in E.
  destruct (reify_is Inp I _ _ E) as [De Ee]. replace zero with (add one (num (-1)) : A).
  - apply padd_is; [rewrite <- Ee; now apply norm_is | apply number_is].
  - rewrite num_minus. ring.
Qed.
Lemma without_test_is I t e : def I t -> def I e -> def I (without_test t e) /\ den I (without_test t e) = den I e.
Proof.
  intros Dt D. unfold without_test. destruct (same _ _) eqn:S; [| now split]. apply same_eq in S.
  destruct (fn_truth A 1 [den I t] eq_refl) as [T | T].
  - rewrite <- num_0 in T. destruct (test_is I t 0 e T D) as [D' E]. rewrite <- E.
    apply (reify_is Inp I). now apply norm_is.
  - rewrite S. apply (reify_is Inp I). apply where_zero_is; [exact T | | exact D].
    apply zero_of_is; [exact Dt |]. now apply fn_one.
Qed.
Lemma merged_is I e : def I e -> def I (merged e) /\ den I (merged e) = den I e.
Proof.
  assert (H : forall ts, Forall (def I) ts -> forall e, def I e ->
    def I (fold_left (fun e t => without_test t e) ts e) /\ den I (fold_left (fun e t => without_test t e) ts e) = den I e).
  { induction 1 as [| t ts Dt _ IH]; intros d D; [now split |]. cbn [fold_left].
    destruct (without_test_is I t d Dt D) as [D' E]. destruct (IH _ D') as [D'' E'']. split; [exact D'' | congruence]. }
  intros D. exact (H _ (open_tests_is e I D) e D).
Qed.
Lemma decided_within_is e : forall I, def I e -> kept I e (decided_within e).
Proof.
  unfold kept. induction e; intros I D; cbn [decided_within]; try (now repeat split).
  - destruct (IHe I D) as (D' & _ & L). rewrite !den_read, L. now repeat split.
  - destruct D as [Da Db]. destruct (IHe1 I Da) as (D1 & E1 & _), (IHe2 I Db) as (D2 & _ & L2). rewrite !dens_cons, E1, L2. now repeat split.
  - destruct D as [Da Db]. destruct (IHe1 I Da) as (D1 & E1 & _), (IHe2 I Db) as (D2 & E2 & _). cbn. rewrite E1, E2. now repeat split.
  - destruct D as [Da Db]. destruct (IHe1 I Da) as (D1 & E1 & _), (IHe2 I Db) as (D2 & E2 & _). cbn. rewrite E1, E2. now repeat split.
  - destruct D as [Da K]. destruct (IHe I Da) as (D1 & E1 & _). destruct (merged_is I _ D1) as [D2 E2].
    cbn. rewrite E2, E1. now repeat split; try apply K.
  - destruct (IHe I D) as (D' & E & _). cbn. rewrite E. now repeat split.
  - destruct D as [Da K]. destruct (IHe I Da) as (D1 & _ & L1). rewrite !den_fn, L1.
    split; [split; [exact D1 | now rewrite L1] | now split].
  - destruct D as (Dn & Sz & K).
    assert (B : forall i, (i < count (den I e1))%nat ->
      kept (set I v (at_index i)) e2 (decide (facts_of (divisors e2)) (decided_within e2))).
    { intros i L. destruct (IHe2 _ (K i L)) as (Db & Eb & Lb).
      destruct (decide_is (set I v (at_index i)) (facts_of (divisors e2)) (decided_within e2)) as (Dc & Ec & Lc);
        [now apply facts_of_is, divisors_is, K | exact Db |]. split; [exact Dc | split; congruence]. }
    cbn. repeat split; auto; try apply Sz; [intros i L; now apply B |]. apply sum_ext. intros i L. now apply B.
  - destruct D as (Dn & Sz & K). cbn. repeat split; auto; try apply Sz; [intros i L; now apply IHe2, K |].
    apply greatest_ext. intros i L. now apply IHe2, K.
  - split; [exact D | now split].
Qed.
Lemma settled_is I facts e : facts_hold I facts -> def I e -> def I (settled facts e) /\ den I (settled facts e) = den I e.
Proof.
  intros F D. destruct (decide_is I facts _ F D) as (D' & E' & _). destruct (decided_within_is _ I D') as (D'' & E'' & _).
  unfold settled. split; [exact D'' | congruence].
Qed.

Lemma difference_is a b I : def I a -> def I b -> is_zero rounds (difference a b) = true -> den I a = den I b.
Proof.
  intros Da Db H. unfold difference in H.
  assert (P : is_p I (padd (norm a) (pscale (-1) [] (norm b))) (add (den I a) (mul (mul (num (-1)) one) (den I b)))).
  { apply padd_is; [now apply norm_is |]. apply pscale_is; [now split | now apply norm_is]. }
  apply (is_zero_is I rounds _ _ P) in H. rewrite num_minus in H.
  transitivity (add (add (den I a) (mul (mul (opp one) one) (den I b))) (den I b)); [ring |]. rewrite H. ring.
Qed.
Theorem accepted_equal a b I : accepted a b = true -> def I a -> def I b -> den I a = den I b.
Proof.
  intros H Da Db. unfold accepted in H. cbv zeta in H. apply orb_prop in H as [H | H]; [now apply difference_is |].
  assert (F : facts_hold I (facts_of (divisors a ++ divisors b))).
  { apply facts_of_is, Forall_app. split; now apply divisors_is. }
  destruct (settled_is I _ a F Da) as [Da' <-], (settled_is I _ b F Db) as [Db' <-]. now apply difference_is.
Qed.
End Denotation.
